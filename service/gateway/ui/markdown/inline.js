// Markdown inside a line: emphasis, code, links, citations. Makes DOM nodes, never markup, and
// takes time in proportion to the text: a search that found no end is not made again.

import { el } from "../lib/dom.js";

const MAX_DEPTH = 8;
const MAX_LABEL = 500; // characters of a link's text
const PUNCTUATION = /[\\`*_{}[\]()#+\-.!|~<>]/;
const ADDRESS = /^https?:\/\/[^\s<>"]+/i;
const STYLES = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

/** Nodes of a text; `cite(number)` gives the node of a citation mark, or null if there is none. */
export function inline(text, cite = () => null, depth = 0) {
  const nodes = [];
  const endless = new Set(); // what has no end further on
  let plain = "";
  let at = 0;

  const add = (node, length) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    at += length;
  };
  while (at < text.length) {
    const found = special(text, at, endless, cite, depth);
    if (found) add(...found);
    else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** [node, length] of what begins at `at`, or null if that is an ordinary character. */
function special(text, at, endless, cite, depth) {
  switch (text[at]) {
    case "\n":
      return [el("br"), 1];
    case "\\":
      return PUNCTUATION.test(text[at + 1] ?? "") ? [text[at + 1], 2] : null;
    case "`":
      return code(text, at, endless);
    case "[":
      return citation(text, at, cite) ?? link(text, at, cite, depth);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, cite, depth, 1) : null;
    case "*":
    case "_":
    case "~":
      return depth < MAX_DEPTH ? emphasis(text, at, endless, cite, depth) : null;
    case "h":
    case "H":
      return address(text, at);
  }
  return null;
}

function code(text, at, endless) {
  const ticks = /^`+/.exec(text.slice(at, at + 32))[0];
  if (endless.has(ticks)) return null;
  const end = run(text, ticks, at + ticks.length);
  if (end < 0) {
    endless.add(ticks);
    return null;
  }
  const inside = text.slice(at + ticks.length, end).replaceAll("\n", " ");
  const trimmed = /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside;
  return [el("code", {}, trimmed), end + ticks.length - at];
}

/** Where a run of exactly these ticks begins, -1: nowhere. */
function run(text, ticks, from) {
  for (let at = text.indexOf(ticks, from); at >= 0; ) {
    let end = at;
    while (text[end] === "`") end += 1;
    if (end - at === ticks.length) return at;
    at = text.indexOf(ticks, end);
  }
  return -1;
}

function citation(text, at, cite) {
  const mark = /^\[(\d{1,4})\](?!\()/.exec(text.slice(at, at + 7));
  const node = mark && cite(Number(mark[1]));
  return node ? [node, mark[0].length] : null;
}

/** A link or, with `before` 1 for its exclamation mark, an image, of which the text is shown. */
function link(text, at, cite, depth, before = 0) {
  const label = /^\[((?:[^[\]\\\n]|\\.|\[[^[\]\n]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+["'][^"'\n]*["'])?\s*\)/.exec(
    text.slice(at, at + MAX_LABEL + 2048),
  );
  if (!label || label[1].length > MAX_LABEL || depth >= MAX_DEPTH || !safe(label[2])) return null;
  const shown = label[1] ? inline(label[1], () => null, MAX_DEPTH - 1) : [label[2]];
  return [anchor(label[2], shown), label[0].length + before];
}

function address(text, at) {
  if (at > 0 && /[\w/]/.test(text[at - 1])) return null;
  const found = ADDRESS.exec(text.slice(at, at + 2048));
  if (!found) return null;
  let url = found[0].replace(/[.,:;!?*_~'"\]]+$/, "");
  // A bracket that was opened outside belongs to the sentence.
  if (url.endsWith(")") && !url.includes("(")) url = url.replace(/\)+[.,:;!?]*$/, "");
  return safe(url) ? [anchor(url, [url]), url.length] : null;
}

/** Only these leave the page: no script, no file, nothing relative to the service. */
function safe(url) {
  if (!ADDRESS.test(url)) return false;
  try {
    return ["http:", "https:"].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}

const anchor = (href, shown) => el("a", { href, target: "_blank", rel: "noopener noreferrer" }, shown);

function emphasis(text, at, endless, cite, depth) {
  const mark = [text.slice(at, at + 2), text[at]].find((of) => of in STYLES);
  if (!mark || endless.has(mark)) return null;
  const from = at + mark.length;
  if (/\s/.test(text[from] ?? " ")) return null;
  if (mark.startsWith("_") && /[\p{L}\p{N}]/u.test(text[at - 1] ?? "")) return null;
  const end = closing(text, mark, from);
  if (end < 0) {
    endless.add(mark);
    return null;
  }
  const inside = inline(text.slice(from, end), cite, depth + 1);
  return [el(STYLES[mark], {}, inside), end + mark.length - at];
}

function closing(text, mark, from) {
  for (let at = text.indexOf(mark, from + 1); at >= 0; at = text.indexOf(mark, at + 1)) {
    const double = mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark);
    const inWord = mark.startsWith("_") && /[\p{L}\p{N}]/u.test(text[at + mark.length] ?? "");
    if (!double && !inWord && !/[\s\\]/.test(text[at - 1])) {
      // Of "***" the outer marks close last.
      return mark.length === 2 && text[at + 2] === mark[0] ? at + 1 : at;
    }
  }
  return -1;
}
