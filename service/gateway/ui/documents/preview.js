// Reads a document: its text with, if wanted, one passage marked, and what is known of it.

import { documentPath, getJson } from "../lib/api.js";
import { read } from "../lib/dialogs.js";
import { el } from "../lib/dom.js";
import { count, moment, plural, unitsAt } from "../lib/format.js";

const AT_ONCE = 200_000; // characters that are shown before one asks for the rest

/** Opens a document; `passage` has `char_start` and `char_end` in code points. */
export async function openDocument(docId, collection, passage = null) {
  read(docId, [el("p", { role: "status" }, "loading")]);
  let document;
  try {
    document = await getJson(documentPath(docId, collection));
  } catch (error) {
    const gone = error.status === 404 ? "This document is no longer there." : error.message;
    read(docId, [el("p", { class: "wrong", role: "alert" }, gone)]);
    return;
  }
  const marked = passage && el("mark", { tabindex: "-1" });
  read(document.title || docId, [facts(document, collection), ...warningsOf(document), textOf(document.text, passage, marked)]);
  marked?.scrollIntoView({ block: "center" });
}

function facts(document, collection) {
  const rows = [
    ["Document", document.doc_id],
    ["Collection", collection],
    ["Size", `${plural(document.num_chars, "character")}, ${plural(document.num_tokens, "token")}, ${plural(document.num_chunks, "chunk")}`],
    ["Updated", moment(document.updated)],
    ["Pinned", document.pinned ? "yes" : "no"],
    ["Readers", document.readers.join(", ") || "everybody"],
    ...Object.entries(document.metadata)
      .filter(([name]) => name !== "outline")
      .map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
  ];
  return el("dl", { class: "facts" }, rows.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

/** What of the file is not in the text, or may be wrong there. */
function warningsOf({ warnings }) {
  if (!warnings?.length) return [];
  const label = "Stored, but not all of it";
  return [el("ul", { class: "warnings", "aria-label": label }, warnings.map(({ message }) => el("li", { class: "wrong" }, message)))];
}

function textOf(text, passage, marked) {
  const body = el("div", { class: "document-text", role: "region", tabindex: "0", "aria-label": "Text of the document" });
  const start = passage ? unitsAt(text, passage.char_start) : 0;
  const end = passage ? unitsAt(text, passage.char_end) : 0;
  const until = Math.max(AT_ONCE, end);
  if (marked) {
    marked.append(text.slice(start, end));
    body.append(text.slice(0, start), marked);
  }
  body.append(text.slice(end, until));
  if (text.length > until) {
    const rest = el("button", { type: "button" }, `Show the other ${count(text.length - until)} characters`);
    rest.addEventListener("click", () => rest.replaceWith(text.slice(until)));
    body.append(rest);
  }
  return body;
}
