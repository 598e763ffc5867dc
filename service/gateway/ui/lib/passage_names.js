// What the passages of one answer are called, so that those of one document can be told apart.

import { el } from "./dom.js";
import { count, unitsAt } from "./format.js";

/**
 * Per passage `{title, section, follows}`: its document, where in it (heading and page; its first
 * words, too, where others of the document have the same), and whether the one before is of the
 * same document.
 */
export function passageNames(passages) {
  const sections = passages.map(sectionOf);
  return passages.map((passage, i) => {
    const like = (other, j) => j !== i && other.doc_id === passage.doc_id && sections[j] === sections[i];
    const words = passages.some(like) ? beginning(passage) : "";
    return {
      title: passage.title || passage.doc_id,
      section: [sections[i], words].filter(Boolean).join(" · "),
      follows: i > 0 && passages[i - 1].doc_id === passage.doc_id,
    };
  });
}

export const chipClass = ({ used }) => `chip ${{ true: "used", false: "unused" }[used] ?? ""}`.trim();

/** One line that names a passage below the one before. */
export const lineFor = ({ index }, { title, section, follows }) =>
  `[${index}] ${[follows && section ? "" : title, section].filter((part, i) => part || !i).join(" › ").trim()}`;

/** What stands on the button of a passage; `used` is known when the answer is complete. */
export function chipLabel({ index, used }, { title, section, follows }) {
  return [
    el("span", { class: "mark" }, `[${index}]`),
    el("span", { class: follows && section ? "offscreen" : null }, ` ${title}`),
    section && el("span", { class: "section" }, ` › ${section}`),
    used && el("span", { class: "mark" }, " ✓", el("span", { class: "offscreen" }, " used")),
  ].filter(Boolean);
}

/** A passage may begin at the end of a section: what it was used for stands below its own heading. */
function sectionOf({ heading, title, page, ...of }) {
  const below = headingAbove(of) ?? heading;
  const named = below && below !== title ? below : "";
  const paged = page && (/^\d+$/.test(page) ? `page ${page}` : page);
  return [named, paged].filter(Boolean).join(", ");
}

function headingAbove({ text, char_start: first, quote_start: quote }) {
  if (!text || !Number.isInteger(quote)) return undefined;
  return [...text.slice(0, unitsAt(text, quote - first)).matchAll(/^#{1,6} +(.+)$/gm)].at(-1)?.[1].trim();
}

function beginning({ text, heading, char_start: start }) {
  if (!text) return `from character ${count(start)}`;
  const words = text.replace(/^[#=\s]+/, "").trim();
  const rest = heading && words.startsWith(heading) ? words.slice(heading.length) : words;
  return `“${rest.trim().split(/\s+/).slice(0, 5).join(" ")} …”`;
}
