// Makes elements without parsing markup, so that no text of a document can become HTML.

export const byId = (id) => document.getElementById(id);

/** Makes an element. Attributes like `onclick` are listeners, `data` is the dataset. */
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

/** Replaces the children of `node` with `items`. */
export function fill(node, items) {
  node.replaceChildren(...items);
  return node;
}

/** Calls `work` every `seconds()` while `panel` is shown; returns a function that calls it now. */
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
