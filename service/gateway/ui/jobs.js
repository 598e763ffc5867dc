// The Jobs tab: the progress and errors of ingest jobs, and cancelling them.

import { getJson, send } from "./api.js";
import { byId, el, fill, whileShown } from "./dom.js";
import { count, moment, plural } from "./format.js";

const PAGE = 50;
const ACTIVE = ["queued", "running"];

/** Returns a function that reloads the tab. */
export function jobs() {
  const panel = byId("panel-jobs");
  const status = byId("jobs-status");
  let cursor = null;
  let active = false;

  async function read() {
    await guarded(async () => {
      const found = await getJson(`admin/jobs?limit=${PAGE}`);
      fill(byId("jobs"), found.jobs.map(rowOf));
      active = found.jobs.some((job) => ACTIVE.includes(job.state));
      more(found.next_cursor);
      const open = found.jobs.filter((job) => ACTIVE.includes(job.state)).length;
      status.textContent = found.jobs.length ? `${plural(open, "job")} under way` : "nothing was ingested yet";
    });
  }

  async function older() {
    await guarded(async () => {
      const found = await getJson(`admin/jobs?${new URLSearchParams({ limit: PAGE, cursor })}`);
      byId("jobs").append(...found.jobs.map(rowOf));
      more(found.next_cursor);
    });
  }

  function more(next) {
    cursor = next;
    byId("jobs-more").hidden = !cursor;
  }

  async function guarded(work) {
    try {
      await work();
      status.classList.remove("wrong");
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("wrong");
    }
  }

  function rowOf(job) {
    const { done, failed, total } = job.progress;
    const cancel = async () => {
      await guarded(() => send(`admin/jobs/${job.job_id}`, "DELETE"));
      again();
    };
    const button = el("button", { type: "button", class: "danger", onclick: cancel, "aria-label": `Cancel job ${job.job_id}` }, "Cancel");
    return el(
      "tr",
      {},
      el("th", { scope: "row", class: "code" }, job.job_id.slice(0, 12), errorsOf(job)),
      el("td", {}, el("span", { class: `badge ${job.state}` }, job.state)),
      el("td", {}, el("progress", { max: Math.max(1, total), value: done + failed + job.progress.cancelled, "aria-label": `Progress of job ${job.job_id}` })),
      [done, failed, total].map((n) => el("td", { class: "number" }, count(n))),
      el("td", {}, Object.entries(job.changes).map(([change, n]) => `${count(n)} ${change}`).join(", ")),
      el("td", { class: "nowrap" }, moment(job.created)),
      el("td", {}, ACTIVE.includes(job.state) ? button : null),
    );
  }

  const again = whileShown(panel, () => (active ? 2 : 15), read);
  byId("jobs-refresh").addEventListener("click", again);
  byId("jobs-more").addEventListener("click", older);
  return again;
}

function errorsOf(job) {
  if (!job.errors.length) return null;
  return el(
    "details",
    {},
    el("summary", {}, plural(job.errors.length, "error")),
    el("ul", {}, job.errors.map((error) => el("li", {}, `${error.doc_id}: ${error.message}`))),
  );
}
