// Workers in the Tiers tab, where there may be more than one: state, load, and what each holds.

import { el } from "../lib/dom.js";
import { bytes, count, percent, time } from "../lib/format.js";

/** Whether there are workers to tell apart: several, or one that runs by itself. */
export const several = (workers) => workers.length > 1 || workers.some((worker) => worker.address);

export function workerRow(worker) {
  const { name, memory, running, waiting, pool_free: free, backlog_s: backlog } = worker;
  const used = memory?.used_bytes;
  const full = memory?.capacity_bytes ? used / memory.capacity_bytes : null;
  const meter = el("meter", { min: 0, max: 1, value: full ?? 0, "aria-label": `RAM of worker ${name} full` });
  return el(
    "tr",
    {},
    el("th", { scope: "row", class: "worker-name" }, ...breakable(name)),
    el("td", {}, state(worker)),
    number(running, count),
    number(waiting, count),
    number(used, bytes),
    el("td", { class: "nowrap wide-only" }, full === null ? "" : [meter, ` ${percent(full)}`]),
    number(free, percent, "wide-only"),
    number(backlog, time, "wide-only"),
    el("td", { class: "wide-only" }, worker.device ?? "–"),
  );
}

/** A badge, and below it why it takes no requests. */
function state({ reason, draining }) {
  const [kind, word] = draining ? ["running", "draining"] : reason === null ? ["succeeded", "ready"] : ["failed", "not ready"];
  return [el("span", { class: `badge ${kind}` }, word), reason === null ? null : el("span", { class: "quiet worker-reason" }, reason)];
}

/** An address, which may be broken before its port. */
const breakable = (name) => name.split(/(?=:)/).flatMap((part, index) => (index ? [el("wbr"), part] : [part]));

const number = (value, format, also = "") =>
  el("td", { class: `number ${also}` }, value === null || value === undefined ? "–" : format(value));
