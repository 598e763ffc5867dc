// The Tiers tab: contents and health of the KV store's tiers, and a few figures of the worker.

import { getJson } from "../lib/api.js";
import { byId, el, fill, whileShown } from "../lib/dom.js";
import { bytes, count, percent } from "../lib/format.js";
import { several, workerRow } from "./workers.js";

const NAMES = { memory: "RAM", ssd: "SSD", redis: "Redis", s3: "S3" };

/** Returns a function that reloads the tab. */
export function tiers() {
  const status = byId("tiers-status");

  async function read() {
    try {
      const told = await getJson("status");
      fill(byId("tiers"), Object.entries(told.tiers).map(rowOf));
      byId("workers-card").hidden = !several(told.workers);
      fill(byId("workers"), several(told.workers) ? told.workers.map(workerRow) : []);
      fill(byId("facts"), facts(told).map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
      status.textContent = summary(told);
      status.classList.toggle("wrong", Boolean(told.reason));
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("wrong");
    }
  }

  const again = whileShown(byId("panel-tiers"), () => 5, read);
  byId("tiers-refresh").addEventListener("click", again);
  return again;
}

function summary({ state, reason, workers }) {
  const ready = workers.filter((worker) => worker.reason === null).length;
  const whole = reason ? `${state}: ${reason}` : state;
  return several(workers) ? `${whole}; ${count(ready)} of ${count(workers.length)} workers ready` : whole;
}

function rowOf([name, tier]) {
  const { used_bytes: used = 0, capacity_bytes: capacity = 0 } = tier;
  const well = tier.healthy !== 0;
  const full = capacity ? used / capacity : null;
  const meter = el("meter", { min: 0, max: 1, high: 0.9, value: full ?? 0, "aria-label": `${NAMES[name] ?? name} full` });
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("span", { class: `t ${name}`, "aria-hidden": "true" }, "  "), ` ${NAMES[name] ?? name}`),
    el("td", {}, el("span", { class: `badge ${well ? "succeeded" : "failed"}` }, well ? "healthy" : "unreachable")),
    el("td", { class: "number" }, count(tier.entries ?? 0)),
    el("td", { class: "number" }, bytes(used)),
    el("td", { class: "number wide-only" }, capacity ? bytes(capacity) : "no limit"),
    el("td", { class: "nowrap wide-only" }, full === null ? "" : [meter, ` ${percent(full)}`]),
    el("td", { class: "number wide-only" }, count(tier.evictions ?? 0)),
  );
}

function facts({ version, advice, model, corpus, worker, in_flight: open }) {
  const out = [["Version", version], ...advice.map((sentence) => ["Advice", sentence])];
  if (model) {
    out.push(["Model", model.id], ["Layers × KV heads", `${model.layers} × ${model.kv_heads}`], ["Type", model.dtype]);
    out.push(["Device", model.device], ["Context", count(model.max_context)], ["KV per token", bytes(model.kv_bytes_per_token)]);
    out.push(["Stored as", model.codec]);
  }
  if (corpus) out.push(["Documents", count(corpus.documents)], ["Chunks", count(corpus.chunks)], ["Tokens", count(corpus.tokens)]);
  if (open !== null) out.push(["Requests open", count(open)]);
  if (worker.running !== null) out.push(["Running", count(worker.running)], ["Waiting", count(worker.waiting)]);
  if (worker.pool_free !== null) out.push(["KV pool free", percent(worker.pool_free)]);
  return out;
}
