// Shows how the time to the first token was spent, beside the expected time of a full prefill.

import { el } from "../lib/dom.js";
import { time } from "../lib/format.js";

const STAGES = [
  ["embed", "Embed question"],
  ["retrieve", "Retrieve"],
  ["rerank", "Rerank"],
  ["plan", "Plan prompt"],
  ["queue", "Queue"],
  ["load", "Wait for KV"],
  ["prefill", "Fuse and prefill"],
  ["first_token", "Sample first token"],
];

/**
 * Heading and table for a finished answer; `full` is what a full prefill takes, {seconds, basis}
 * with the basis "measured", "estimate" or "assumed", or null.
 */
export function waterfall(id, response, full) {
  const { stages, timing } = response;
  const rows = [];
  let at = 0;
  for (const [name, title] of STAGES) {
    if (stages[name] === undefined) continue;
    rows.push({ name, title, start: at, length: stages[name], kind: name });
    at += stages[name];
  }
  const rest = timing.ttft_s - at;
  if (rest > 0) rows.push({ name: "rest", title: "HTTP and messages", start: at, length: rest, kind: "rest" });
  const totals = [{ name: "ttft", title: "First token", start: 0, length: timing.ttft_s, kind: "ttft" }];
  if (full && response.fusion.method !== "vanilla") {
    totals.push({ name: "full", title: `Full prefill (${full.basis})`, start: 0, length: full.seconds, kind: "full", about: full.basis !== "measured" });
  }
  const scale = Math.max(...totals.map((row) => row.length), at);
  return [
    el("header", {}, el("h3", { id }, "Time to first token"), el("p", { class: "quiet" }, comparison(response, full))),
    el(
      "table",
      { class: "waterfall", "aria-labelledby": id },
      el("thead", { class: "quiet" }, el("tr", {}, el("th", { scope: "col" }, "Stage"), el("th", { scope: "col", class: "number" }, "Time"), el("th", { "aria-hidden": "true" }))),
      el("tbody", {}, rows.map((row) => line(row, scale))),
      el("tfoot", {}, totals.map((row) => line(row, scale))),
    ),
  ];
}

function line({ name, title, start, length, kind, about }, scale) {
  const bar = el("i", { class: kind, vars: { start: start / scale, length: length / scale } });
  return el(
    "tr",
    { data: { stage: name } },
    el("th", { scope: "row" }, title),
    el("td", { class: "number" }, `${about ? "≈ " : ""}${time(length)}`),
    el("td", { class: "track", "aria-hidden": "true" }, bar),
  );
}

function comparison({ timing, cache, usage }, full) {
  if (cache.recomputed_tokens === usage.prompt_tokens) return "this is a full prefill";
  if (!full || timing.ttft_s <= 0) return "";
  const takes = full.basis === "measured" ? "took" : "is expected to take";
  return `a full prefill ${takes} ${(full.seconds / timing.ttft_s).toFixed(1)} times as long`;
}
