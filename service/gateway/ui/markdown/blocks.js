// Cuts Markdown into blocks: what they are and which lines they have. Knows nothing of the page.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const blank = (line) => line.trim() === "";

/** Blocks with `kind` and `source`, which tells whether a block is still the same one. */
export function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, end] = take(lines, at);
    found.push({ ...block, source: `${block.kind}\n${lines.slice(at, end).join("\n")}` });
    at = end;
  }
  return found;
}

function take(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return fence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: bare(heading[2]) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) return quote(lines, at);
  if (ITEM.test(line)) return list(lines, at);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

/** A heading's text without the hashes that may close it. */
function bare(text) {
  const end = text.trimEnd();
  const open = end.replace(/#+$/, "");
  return open === "" || /\s$/.test(open) ? open.trimEnd() : end;
}

function fence(lines, at) {
  const [, mark, info] = FENCE.exec(lines[at]);
  const inside = [];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const close = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(lines[end]);
    if (close && close[1][0] === mark[0] && close[1].length >= mark.length) {
      end += 1;
      break;
    }
    inside.push(lines[end]);
  }
  return [{ kind: "code", language: info.trim().split(/\s/)[0], text: inside.join("\n") }, end];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return [{ kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")) }, end];
}

function list(lines, at) {
  const [, , first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const like = (mark) => (ordered ? /\d/.test(mark) && mark.at(-1) === first.at(-1) : mark === first);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item && like(item[2])) {
      items.push([item[4]]);
      const width = item[1].length + item[2].length + Math.max(1, Math.min(item[3].length, 4));
      end = itemLines(lines, end + 1, width, items.at(-1));
    } else break;
  }
  return [{ kind: "list", ordered, start: ordered ? Number.parseInt(first, 10) : 1, items }, end];
}

/** Collects an item's further lines, without their indent; returns where it ends. */
function itemLines(lines, from, width, into) {
  let at = from;
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const indent = line.length - line.trimStart().length;
    if (blank(line)) {
      const next = lines[at + 1];
      const further = next !== undefined && !blank(next) && next.length - next.trimStart().length >= Math.min(width, 2);
      if (!further && !(next !== undefined && ITEM.test(next))) break;
      into.push("");
    } else if (indent >= Math.min(width, 2)) into.push(line.slice(Math.min(indent, width)));
    else if (into.at(-1) !== "" && !starts(lines, at)) into.push(line); // a line of its paragraph
    else break;
  }
  while (into.length > 1 && into.at(-1) === "") into.pop();
  return at;
}

const isTable = (lines, at) =>
  lines[at].includes("|") && DELIMITERS.test(lines[at + 1] ?? "") && cells(lines[at]).length === cells(lines[at + 1]).length;

function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : "start"));
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !blank(lines[end])) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => row[column] ?? ""));
    end += 1;
  }
  return [{ kind: "table", head, align, rows }, end];
}

/** A row's cells; a bar in code or after a backslash is part of its cell. */
function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  const found = inner.match(/(?:`[^`]*`|\\.|[^|])*(?:\||$)/g) ?? [];
  const out = found.map((cell) => cell.replace(/\|$/, "").replaceAll("\\|", "|").trim());
  if (!/(?<!\\)\|$/.test(inner)) out.pop(); // the empty match at the end
  return out;
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !blank(lines[end]) && !starts(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim().replace(/\\$/, "")).join("\n");
  return [{ kind: "paragraph", text }, end];
}

/** Whether another block begins here, even right after a paragraph. */
function starts(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(lines, at);
}
