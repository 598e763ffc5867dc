// Tabs as WAI-ARIA describes them: arrow keys, Home and End select; the address keeps the choice.

/** A panel gets the event "shown" when it is selected. Returns a function that selects by name. */
export function tabs(list) {
  const all = [...list.querySelectorAll("[role=tab]")];
  // With a slash, so that it is not the id of an element, to which the browser would scroll.
  const address = (tab) => `#/${tab.id.replace("tab-", "")}`;
  const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  function choose(tab, { focus = false } = {}) {
    for (const other of all) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      panel(other).hidden = !chosen;
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    history.replaceState(null, "", address(tab));
    panel(tab).dispatchEvent(new Event("shown"));
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    choose(all[(to + all.length) % all.length], { focus: true });
  });
  const addressed = () => all.find((tab) => address(tab) === location.hash);
  window.addEventListener("hashchange", () => addressed() && choose(addressed()));
  choose(addressed() ?? all[0]);
  return (name) => choose(document.getElementById(`tab-${name}`));
}
