// Files in: chosen or dropped, sent two at a time, and their jobs followed until they end.

import { getJson } from "../lib/api.js";
import { refreshCollections } from "../lib/collections.js";
import { byId, el, fill } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { droppedFiles } from "./dropped_files.js";
import { upload } from "./upload_request.js";
import { uploadRow } from "./upload_row.js";

const AT_A_TIME = 2;
const POLL_MS = 700;

/** `added(collection)` is called whenever documents have become available. */
export function uploads(added) {
  const zone = byId("drop");
  const input = byId("files");
  const list = byId("uploads");
  const waiting = [];
  const following = [];
  let sending = 0;
  let polling = false;

  function add(files) {
    const collection = byId("upload-collection").value.trim() || "default";
    const readers = byId("upload-readers").value.trim();
    for (const { file, name } of files) {
      const item = { file, name, collection, readers };
      item.row = uploadRow(name, file.size, () => enqueue(item));
      list.append(item.row.node);
      enqueue(item);
    }
    byId("uploads-clear").hidden = !list.children.length;
  }

  function enqueue(item) {
    waiting.push(item);
    while (sending < AT_A_TIME && waiting.length) sendOne(waiting.shift());
  }

  async function sendOne(item) {
    sending += 1;
    try {
      const { row } = item;
      item.job = (await upload(item.file, item.name, item.collection, item.readers, row.sending)).job_id;
      row.sending(1);
      following.push(item);
      poll();
    } catch (error) {
      item.row.failed(error.message);
    } finally {
      sending -= 1;
      if (waiting.length) sendOne(waiting.shift());
    }
  }

  /** Looks after one job after the other, however many there are: the service has other work. */
  async function poll() {
    if (polling) return;
    polling = true;
    while (following.length) {
      const item = following.shift();
      try {
        const job = await getJson(`admin/jobs/${item.job}`);
        if (!settled(item, job)) following.push(item);
      } catch (error) {
        if (error.status) item.row.failed(error.message, { repeat: false });
        else following.push(item); // the service is away for a moment
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS / Math.max(1, following.length)));
    }
    polling = false;
  }

  function settled({ row, collection }, job) {
    if (["queued", "running"].includes(job.state)) {
      row.job(job);
      return false;
    }
    if (job.state === "succeeded") row.done(job);
    else if (job.state === "cancelled") row.failed("cancelled");
    else row.failed(reasons(job));
    if (job.progress.done) added(collection);
    return true;
  }

  input.addEventListener("change", () => {
    add([...input.files].map((file) => ({ file, name: file.name })));
    input.value = ""; // so that the same file can be chosen again
  });
  byId("files-choose").addEventListener("click", () => input.click());
  byId("uploads-clear").addEventListener("click", () => {
    for (const row of [...list.children]) if (["done", "failed"].includes(row.dataset.state)) row.remove();
    byId("uploads-clear").hidden = !list.children.length;
    byId("files-choose").focus();
  });
  const over = (is) => zone.classList.toggle("over", is);
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  zone.addEventListener("dragleave", (event) => {
    if (!zone.contains(event.relatedTarget)) over(false);
  });
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    over(false);
    add(await droppedFiles(event.dataTransfer));
  });
  // A file that misses the zone must not replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
  document.addEventListener("collections", ({ detail }) =>
    fill(byId("upload-collections"), detail.map((c) => el("option", { value: c.collection }))),
  );
}

function reasons({ state, errors, progress }) {
  const why = errors.map((error) => error.message).join("; ") || state;
  return progress.total > 1 ? `${plural(progress.failed, "document")} of ${progress.total} failed: ${why}` : why;
}
