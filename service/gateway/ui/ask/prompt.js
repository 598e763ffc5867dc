// Shows the prompt: a row per segment, with every token marked by what happened to it.

import { el, fill } from "../lib/dom.js";
import { SOURCES, countsOf, inWords, tokensOf } from "./token_trace.js";
import { count, percent, plural } from "../lib/format.js";
import { lineFor, passageNames } from "../lib/passage_names.js";

/** `passages` is called before the first token, `show` at the end of the answer. */
export function promptStrip(id) {
  const detail = el("p", { class: "detail", role: "status" });
  const rows = el("div", { class: "rows" });
  const table = el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Counts of tokens" });
  const heading = el("h3", { id: `${id}-prompt` }, "Prompt, token by token");
  const summary = el("summary", {}, heading);
  const node = el("details", { class: "card prompt", "aria-labelledby": `${id}-prompt`, hidden: true });
  node.append(summary, legend(), detail, rows, table);
  const passages = new Map();

  function light(index) {
    const row = passages.get(index);
    node.open = true;
    const lit = !row.classList.contains("lit");
    for (const other of passages.values()) other.classList.remove("lit");
    row.classList.toggle("lit", lit);
    if (!lit) return false;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    row.scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
    row.querySelector(".tokens").focus({ preventScroll: true });
    return true;
  }

  return {
    node,
    light,
    passages(citations) {
      node.hidden = false;
      detail.textContent = "What became of the tokens is known when the answer is complete.";
      const names = passageNames(citations);
      for (const [i, citation] of citations.entries()) {
        const row = rowOf(lineFor(citation, names[i]), placeOf(citation));
        row.querySelector(".tokens").textContent = citation.text;
        passages.set(citation.index, row);
      }
      fill(rows, passages.values());
    },
    show(response) {
      const { tokens, documents, system } = response.cache;
      node.hidden = false;
      if (!tokens) {
        detail.textContent = "The worker did not say what became of the tokens.";
        return;
      }
      const parts = [["Instruction", rowOf("Instruction", ""), tokens.system, system]];
      const names = passageNames(response.citations);
      for (const [i, citation] of response.citations.entries()) {
        const row = passages.get(citation.index);
        parts.push([lineFor(citation, names[i]), row, tokens.documents[i], documents[i]]);
      }
      parts.push(["Question", rowOf("Question", ""), tokens.question, null]);
      const told = parts.map(([title, row, segment, report]) => {
        const own = tokensOf(segment, tokens);
        dress(row, title, own, tokens, report, detail, (response.cache.gate?.used ?? response.fusion).method);
        return [title, countsOf(own)];
      });
      fill(rows, parts.map(([, row]) => row));
      fill(table, [tableOf(told, `${id}-counts`)]);
      detail.textContent = "Point at a token, or go through them with the arrow keys.";
    },
  };
}

const placeOf = (citation) => `${citation.doc_id}, characters ${citation.char_start}–${citation.char_end}`;

function rowOf(title, place) {
  return el(
    "section",
    { class: "segment", "aria-label": title },
    el("header", {}, el("h4", {}, title), el("span", { class: "quiet place" }, place), el("span", { class: "counts" })),
    el("div", { class: "minimap", "aria-hidden": "true" }),
    el("div", { class: "tokens", role: "group", tabindex: "0", "aria-label": `Text of ${title}` }),
  );
}

/** Fills a row with tokens and counts. */
function dress(row, title, tokens, { layers }, report, detail, method) {
  const words = inWords(countsOf(tokens));
  const problems = report?.problems.length ? ` · ${report.problems.join(", ")}` : "";
  const behind = report?.behind ? ` · stored behind ${plural(report.behind, "other passage")}` : "";
  row.querySelector("h4").textContent = title;
  row.querySelector(".counts").textContent = words + behind + problems;
  fill(row.querySelector(".minimap"), minimap(tokens));
  const box = row.querySelector(".tokens");
  const spans = tokens.map(spanOf);
  fill(box, spans);
  box.setAttribute("aria-label", `Tokens of ${title}: ${words}. Arrow keys go from token to token.`);

  let at = -1;
  function point(to) {
    spans[at]?.classList.remove("at");
    at = to;
    if (at < 0) return;
    spans[at].classList.add("at");
    detail.textContent = describe(tokens[at], tokens.length, layers, method);
  }
  box.addEventListener("pointerover", (event) => {
    const span = event.target.closest(".t");
    if (span) point(spans.indexOf(span));
  });
  box.addEventListener("pointerleave", () => point(-1));
  box.addEventListener("keydown", (event) => {
    const last = spans.length - 1;
    const to = { ArrowRight: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(to);
    spans[to].scrollIntoView({ block: "nearest" });
  });
}

function spanOf(token) {
  const gone = token.kept === 0 ? " evicted" : "";
  return el("span", { class: `t ${token.source}${gone}`, vars: { kept: token.kept } }, visible(token.text));
}

const visible = (text) => (text === "" ? "◦" : text.replaceAll("\n", "↵"));

function describe(token, of, layers, method) {
  const kept = token.kept === 0 ? "evicted: no layer keeps it" : `${percent(token.kept)} of its KV kept`;
  const parts = [
    `Token ${token.at + 1} of ${of}: ${token.text === "" ? "no text of its own" : `“${visible(token.text)}”`}`,
    SOURCES[token.source].about,
    `computed at ${token.computed} of ${plural(layers, "layer")}`,
    kept,
  ];
  if (token.score !== null) parts.push(`${method} score ${token.score}`);
  return parts.join(" · ");
}

/** The tokens as one thin bar; neighbours with the same fate are one piece. */
function minimap(tokens) {
  const pieces = [];
  for (const token of tokens) {
    const kind = token.source + (token.kept === 0 ? " evicted" : "");
    if (pieces.at(-1)?.kind === kind) pieces.at(-1).tokens += 1;
    else pieces.push({ kind, tokens: 1 });
  }
  return pieces.map((piece) => el("i", { class: piece.kind, vars: { tokens: piece.tokens } }));
}

function legend() {
  const entries = Object.entries(SOURCES).map(([source, { name, about }]) => [source, name, about]);
  entries.push(["memory evicted", "Evicted", "no layer keeps it"]);
  return el(
    "ul",
    { class: "legend", "aria-label": "Marks" },
    entries.map(([kind, name, about]) => el("li", { title: about }, el("span", { class: `t ${kind}`, "aria-hidden": "true" }, "abc"), ` ${name}`)),
  );
}

function tableOf(told, id) {
  const names = Object.keys(SOURCES);
  const total = { tokens: 0, evicted: 0, kept: 0 };
  for (const name of names) total[name] = 0;
  for (const [, counts] of told) {
    for (const name of [...names, "tokens", "evicted"]) total[name] += counts[name];
    total.kept += counts.kept * counts.tokens;
  }
  total.kept /= Math.max(1, total.tokens);
  const line = (title, counts) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, title),
      ["tokens", ...names, "evicted"].map((name) => el("td", { class: counts[name] ? "number" : "number none", data: { count: name } }, count(counts[name]))),
      el("td", { class: "number" }, percent(counts.kept)),
    );
  const heads = ["Tokens", ...names.map((name) => SOURCES[name].name), "Evicted", "KV kept"];
  return el(
    "table",
    { id, class: "tallies" },
    el("caption", { class: "quiet" }, "Tokens by where their KV came from. Evicted ones are counted there too."),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Segment"), heads.map((head) => el("th", { scope: "col", class: "number" }, head)))),
    el("tbody", {}, told.map(([title, counts]) => line(title, counts))),
    el("tfoot", {}, line("Prompt", total)),
  );
}
