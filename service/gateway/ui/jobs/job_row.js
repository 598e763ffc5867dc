// One ingest job as a row of the list.

import { el } from "../lib/dom.js";
import { about, count, moment, plural } from "../lib/format.js";

export const isOpen = (job) => ["queued", "running"].includes(job.state);

/** `cancel` is called by the button that an open job has. */
export function jobRow(job, cancel) {
  const { done, failed, cancelled, total } = job.progress;
  const button = el("button", { type: "button", class: "danger", onclick: cancel, "aria-label": `Cancel job ${job.job_id}` }, "Cancel");
  return el(
    "tr",
    { data: { job: job.job_id } },
    el("th", { scope: "row" }, el("span", { class: "code" }, job.job_id.slice(0, 12)), el("span", { class: "quiet" }, moment(job.created))),
    el("td", {}, el("span", { class: `badge ${job.state}` }, job.state)),
    el(
      "td",
      { class: "far" },
      isOpen(job) ? el("progress", { max: Math.max(1, total), value: done + failed + cancelled, "aria-label": `Progress of job ${job.job_id}` }) : null,
      el("span", { class: "counts" }, countsOf(job)),
      el("span", { class: "quiet" }, remaining(job)),
      problems(job),
      warned(job),
    ),
    el("td", { class: "wide-only" }, Object.entries(job.changes).map(([change, n]) => `${count(n)} ${change}`).join(", ")),
    el("td", { class: "row-actions" }, isOpen(job) ? button : null),
  );
}

function countsOf({ progress: { done, failed, cancelled, total } }) {
  const parts = [`${count(done)} of ${plural(total, "document")} stored`];
  if (failed) parts.push(`${count(failed)} failed`);
  if (cancelled) parts.push(`${count(cancelled)} cancelled`);
  return parts.join(", ");
}

/** How long an open job still takes, or what it waits for. */
function remaining(job) {
  if (!isOpen(job)) return "";
  if (job.waiting) return `waits: ${job.waiting}`;
  return job.eta_s === null ? "" : `${about(job.eta_s)} left`;
}

/** What was stored, but not all of it; the job names the first hundred such documents. */
function warned(job) {
  if (!job.warned) return null;
  const lines = job.warnings.flatMap(({ doc_id, warnings }) => warnings.map(({ message }) => el("li", {}, `${doc_id}: ${message}`)));
  const summary = `${plural(job.warned, "document")} stored, but not all of ${job.warned === 1 ? "it" : "them"}`;
  return el("details", { class: "problems" }, el("summary", {}, summary), el("ul", {}, lines));
}

/** The reason is in plain sight; the others, if there are more, behind it. */
function problems(job) {
  if (!job.errors.length) return job.state === "dead" ? el("p", { class: "wrong" }, "a document made the worker die three times") : null;
  const [first, ...others] = job.errors.map((error) => `${error.doc_id}: ${error.message}`);
  return el(
    "div",
    { class: "problems" },
    el("p", { class: "wrong" }, first),
    others.length ? el("details", {}, el("summary", {}, plural(others.length, "more error")), el("ul", {}, others.map((text) => el("li", {}, text)))) : null,
  );
}
