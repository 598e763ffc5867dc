// The passages an answer was given: a row of buttons, each of which opens its text below.

import { el, fill } from "../lib/dom.js";
import { unitsAt } from "../lib/format.js";
import { chipClass, chipLabel, passageNames } from "../lib/passage_names.js";
import { highlighted } from "../markdown/highlight.js";
import { openDocument } from "../documents/preview.js";

/** `open(index)` shows a passage, or hides it if it is shown; `has(index)` says if there is one. */
export function passageList(id) {
  const chips = el("ol", { class: "citations", "aria-label": "Passages the answer was given" });
  const shown = el("section", { class: "passage", id, tabindex: "-1", hidden: true });
  const node = el("div", { class: "passages", hidden: true }, chips, shown);
  let all = [];
  let names = [];
  let collection = "default";
  let current = null;

  function chip(passage, at) {
    const button = el(
      "button",
      { type: "button", class: chipClass(passage), "aria-expanded": "false", "aria-controls": id, data: { index: passage.index } },
      chipLabel(passage, names[at]),
    );
    button.addEventListener("click", () => open(passage.index));
    return el("li", {}, button);
  }

  function open(index) {
    current = current === index ? null : index;
    for (const button of chips.querySelectorAll("button")) {
      button.setAttribute("aria-expanded", String(Number(button.dataset.index) === current));
    }
    shown.hidden = current === null;
    const at = all.findIndex((of) => of.index === current);
    if (at < 0) return;
    const passage = all[at];
    const { title, section } = names[at];
    const whole = el("button", { type: "button", onclick: () => openDocument(passage.doc_id, collection, passage) }, "Open the document");
    fill(shown, [
      el(
        "header",
        {},
        el("h4", {}, `[${passage.index}] ${title}${section ? ` › ${section}` : ""}`),
        el("span", { class: "quiet" }, `${passage.doc_id}, characters ${passage.char_start}–${passage.char_end}`),
      ),
      passage.text === undefined ? el("p", {}, "Its text is no longer kept in this tab.") : textOf(passage),
      passage.chunk_id < 0 ? null : whole,
    ].filter(Boolean));
    shown.setAttribute("aria-label", `Passage ${passage.index}: ${title}`);
    shown.querySelector("mark")?.scrollIntoView({ block: "nearest" });
  }

  return {
    node,
    open(index) {
      if (current !== index) open(index);
      shown.scrollIntoView({ block: "nearest" });
      shown.focus({ preventScroll: true });
    },
    has: (index) => all.some((of) => of.index === index),
    show(passages, from) {
      all = passages;
      names = passageNames(passages);
      collection = from;
      node.hidden = !passages.length;
      fill(chips, passages.map(chip));
    },
  };
}

/** A passage as Markdown; the sentence that supports the answer best is highlighted. */
function textOf({ text, char_start: first, quote_start: start, quote_end: end }) {
  const node = el("blockquote", { class: "markdown", tabindex: "0" });
  const unit = (at) => (at === null || at === undefined ? 0 : unitsAt(text, at - first));
  highlighted(node, text, unit(start), unit(end));
  return node;
}
