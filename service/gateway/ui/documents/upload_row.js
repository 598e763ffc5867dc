// One file on its way in: how much was sent, then how far its job is, then what became of it.

import { el } from "../lib/dom.js";
import { about, bytes, plural } from "../lib/format.js";

/** `again` is called by the button that a failed upload has. */
export function uploadRow(name, size, again) {
  const bar = el("progress", { max: 1, value: 0, "aria-label": `Progress of ${name}` });
  const state = el("span", { class: "quiet", role: "status" }, "waits");
  const retry = el("button", { type: "button", hidden: true, onclick: again, "aria-label": `Send ${name} again` }, "Again");
  const node = el("li", { class: "upload" }, el("span", { class: "upload-name" }, name), el("span", { class: "quiet" }, bytes(size)), bar, state, retry);
  const say = (text, kind = "") => {
    if (state.textContent !== text) state.textContent = text;
    node.dataset.state = kind;
    state.classList.toggle("wrong", kind === "failed");
  };
  return {
    node,
    sending(share) {
      retry.hidden = true;
      bar.hidden = false;
      bar.value = share;
      say(share < 1 ? `sending, ${Math.floor(100 * share)} %` : "sent", "sending");
    },
    job(job) {
      const { done, failed, cancelled, total } = job.progress;
      const ended = done + failed + cancelled;
      // A single document has no steps of its own: an empty bar would look like a standstill.
      if (ended || total > 1) bar.value = ended / total;
      else bar.removeAttribute("value");
      const left = job.waiting ? `waits: ${job.waiting}` : job.eta_s === null ? "" : `${about(job.eta_s)} left`;
      const far = total > 1 ? `${ended} of ${plural(total, "document")}` : job.state;
      say([`being read: ${far}`, left].filter(Boolean).join(", "), "running");
    },
    done(job) {
      bar.hidden = true;
      const unchanged = job.changes.unchanged === job.progress.total;
      say(unchanged ? "was there already, unchanged" : `ready, ${plural(job.chunks, "chunk")}`, "done");
    },
    failed(message, { repeat = true } = {}) {
      bar.hidden = true;
      retry.hidden = !repeat;
      say(message, "failed");
    },
  };
}
