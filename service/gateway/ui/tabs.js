// Tabs as WAI-ARIA describes them: arrows, Home and End move and choose; the address keeps the choice.

/** Panels hear "shown" when they are. */
export function tabs(list) {
  const all = [...list.querySelectorAll("[role=tab]")];
  // With a slash, so that no element's id is meant: the browser would begin there.
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
  choose(all.find((tab) => address(tab) === location.hash) ?? all[0]);
}
