// Shows Markdown that grows: blocks that did not change keep their elements, so that what is
// selected in them stays selected, and a long answer is not made anew with every token.

import { el, fill } from "../lib/dom.js";
import { blocks } from "./blocks.js";
import { inline } from "./inline.js";

const MAX_NESTING = 6; // of lists and quotes; deeper ones are shown as text

/** `show(text)` makes `node` show it. `cite(number)` gives citation marks, as for `inline`. */
export function markdown(node, cite) {
  let shown = [];
  return {
    show(text) {
      const wanted = blocks(text.replaceAll("\r\n", "\n").split("\n"));
      let same = 0;
      while (same < shown.length && shown[same] === wanted[same]?.source) same += 1;
      while (node.children.length > same) node.lastElementChild.remove();
      node.append(...wanted.slice(same).map((block) => element(block, cite, 0)));
      shown = wanted.map((block) => block.source);
    },
  };
}

function element(block, cite, depth) {
  const line = (text) => inline(text, cite);
  switch (block.kind) {
    case "heading":
      // Below the page's own headings.
      return el(`h${Math.min(6, block.level + 2)}`, {}, line(block.text));
    case "rule":
      return el("hr");
    case "code":
      return el("pre", { tabindex: "0", role: "region", "aria-label": `Code${block.language ? `, ${block.language}` : ""}` }, el("code", {}, block.text));
    case "quote":
      return fill(el("blockquote"), inner(block.lines, cite, depth));
    case "list":
      return el(
        block.ordered ? "ol" : "ul",
        { start: block.start === 1 ? null : block.start },
        block.items.map((lines) => el("li", {}, item(lines, cite, depth))),
      );
    case "table":
      return table(block, line);
    default:
      return el("p", {}, line(block.text));
  }
}

function inner(lines, cite, depth) {
  if (depth >= MAX_NESTING) return [lines.join("\n")];
  return blocks(lines).map((block) => element(block, cite, depth + 1));
}

/** An item of one paragraph needs no paragraph of its own. */
function item(lines, cite, depth) {
  const nodes = inner(lines, cite, depth);
  return nodes[0]?.tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function table({ head, align, rows }, line) {
  const cell = (tag, text, column) => el(tag, { class: `to-${align[column]}`, scope: tag === "th" ? "col" : null }, line(text));
  return el(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, head.map((text, column) => cell("th", text, column)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text, column) => cell("td", text, column))))),
    ),
  );
}
