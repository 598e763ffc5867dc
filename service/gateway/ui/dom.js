// Elements without markup: text is always text, so nothing that a document says can become a page.

export const byId = (id) => document.getElementById(id);

/** An element with attributes (`onclick` and its like are listeners, `data` is a dataset) and children. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "vars") for (const [key, of] of Object.entries(value)) node.style.setProperty(`--${key}`, of);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** `items` as the children of `node`, instead of what it had. */
export function fill(node, items) {
  node.replaceChildren(...items);
  return node;
}

/** Calls `work` every `seconds()` while `panel` is shown; returns what makes it happen at once. */
export function whileShown(panel, seconds, work) {
  let timer = 0;
  const run = async () => {
    clearTimeout(timer);
    if (panel.hidden || document.hidden) return;
    await work();
    clearTimeout(timer);
    timer = setTimeout(run, 1000 * seconds());
  };
  document.addEventListener("visibilitychange", run);
  panel.addEventListener("shown", run);
  return run;
}
