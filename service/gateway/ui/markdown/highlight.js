// Shows Markdown with one of its sentences highlighted: two characters that no text has stand around
// it while the text becomes elements.

import { el } from "../lib/dom.js";
import { markdown } from "./markdown.js";

const [OPEN, CLOSE] = ["\ue000", "\ue001"];
const BOUNDS = /[\ue000\ue001]/g;
const BEFORE = /^(?:[\s#>*+|~`_-]|\d+[.)]\s)*/; // marks of Markdown stay outside
const AFTER = /[\s#*|~`_]*$/;

/** Makes `node` show `text`, with the part from `start` to `end` highlighted, if it has such. */
export function highlighted(node, text, start, end) {
  const part = text.slice(start, end).replace(BOUNDS, " ");
  const from = BEFORE.exec(part)[0].length;
  const to = part.length - AFTER.exec(part)[0].length;
  const plain = (piece) => piece.replace(BOUNDS, " ");
  const inside = from < to ? [part.slice(0, from), OPEN, part.slice(from, to), CLOSE, part.slice(to)] : [part];
  markdown(node).show([plain(text.slice(0, start)), ...inside, plain(text.slice(end))].join(""));
  wrap(node);
}

function wrap(node) {
  const whole = node.textContent;
  let lit = false;
  const both = whole.includes(OPEN) && whole.includes(CLOSE);
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const pieces = text.data.split(/([\ue000\ue001])/);
    if (pieces.length === 1 && !lit) continue;
    const nodes = [];
    for (const piece of pieces) {
      if (piece === OPEN || piece === CLOSE) lit = both && piece === OPEN;
      else if (piece) nodes.push(lit ? el("mark", {}, piece) : piece);
    }
    text.replaceWith(...nodes);
  }
}
