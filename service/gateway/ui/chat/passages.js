// The passages an answer was given: a row of buttons, each of which opens its text below.

import { el, fill } from "../lib/dom.js";
import { openDocument } from "../documents/preview.js";

const nameOf = (passage) => passage.title || passage.doc_id;

/** `open(index)` shows a passage, or hides it if it is shown; `has(index)` says if there is one. */
export function passageList(id) {
  const chips = el("ol", { class: "citations", "aria-label": "Passages the answer was given" });
  const shown = el("section", { class: "passage", id, tabindex: "-1", hidden: true });
  const node = el("div", { class: "passages", hidden: true }, chips, shown);
  let all = [];
  let collection = "default";
  let current = null;

  function chip(passage) {
    const button = el(
      "button",
      { type: "button", class: "chip", "aria-expanded": "false", "aria-controls": id, data: { index: passage.index } },
      el("span", { class: "mark" }, `[${passage.index}]`),
      ` ${nameOf(passage)}`,
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
    const passage = all.find((of) => of.index === current);
    if (!passage) return;
    const whole = el("button", { type: "button", onclick: () => openDocument(passage.doc_id, collection, passage) }, "Open the document");
    fill(shown, [
      el(
        "header",
        {},
        el("h4", {}, `[${passage.index}] ${nameOf(passage)}`),
        el("span", { class: "quiet" }, `${passage.doc_id}, characters ${passage.char_start}–${passage.char_end}`),
      ),
      el("blockquote", {}, passage.text ?? "Its text is no longer kept in this tab."),
      passage.chunk_id < 0 ? null : whole,
    ].filter(Boolean));
    shown.setAttribute("aria-label", `Passage ${passage.index}: ${nameOf(passage)}`);
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
      collection = from;
      node.hidden = !passages.length;
      fill(chips, passages.map(chip));
    },
  };
}
