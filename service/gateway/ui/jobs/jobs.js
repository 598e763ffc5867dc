// The Jobs tab: the progress and errors of ingest jobs, and cancelling them.

import { getJson, send } from "../lib/api.js";
import { byId, fill, whileShown } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { isOpen, jobRow } from "./job_row.js";

const PAGE = 50;

/** Returns a function that reloads the tab. */
export function jobs() {
  const panel = byId("panel-jobs");
  const status = byId("jobs-status");
  let cursor = null;
  let active = false;

  async function read() {
    await guarded(async () => {
      const found = await getJson(`admin/jobs?limit=${PAGE}`);
      active = found.jobs.some(isOpen);
      show(found.jobs);
      more(found.next_cursor);
      const open = found.jobs.filter(isOpen).length;
      status.textContent = found.jobs.length ? `${plural(open, "job")} under way` : "nothing was ingested yet";
    });
  }

  /** Rows are made anew; what was focused and what was unfolded stays so. */
  function show(all) {
    const rows = byId("jobs");
    const focused = document.activeElement?.closest?.("#jobs tr")?.dataset.job;
    const unfolded = new Set([...rows.querySelectorAll("details[open]")].map((of) => of.closest("tr").dataset.job));
    fill(rows, all.map(rowOf));
    for (const row of rows.children) {
      if (unfolded.has(row.dataset.job)) row.querySelector("details")?.setAttribute("open", "");
      if (row.dataset.job === focused) (row.querySelector("button, summary") ?? byId("jobs-refresh")).focus();
    }
  }

  const rowOf = (job) =>
    jobRow(job, async () => {
      await guarded(() => send(`admin/jobs/${job.job_id}`, "DELETE"));
      again();
    });

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

  const again = whileShown(panel, () => (active ? 2 : 15), read);
  byId("jobs-refresh").addEventListener("click", again);
  byId("jobs-more").addEventListener("click", older);
  return again;
}
