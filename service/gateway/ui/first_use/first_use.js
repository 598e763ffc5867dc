// What a new service shows instead of emptiness: how to begin, sample documents, sample questions.

import { getJson, send } from "../lib/api.js";
import { refreshCollections } from "../lib/collections.js";
import { byId, el, fill } from "../lib/dom.js";
import { about } from "../lib/format.js";
import { COLLECTION, DOCUMENTS, QUESTIONS } from "./samples.js";

const POLL_MS = 500;

/** Fills every place of the page that is marked `data-first-use`. */
export function firstUse() {
  const questions = byId("sample-questions");
  fill(
    questions,
    QUESTIONS.map((question) =>
      el("li", {}, el("button", { type: "button", class: "chip", onclick: () => ask(question) }, question)),
    ),
  );
  for (const button of document.querySelectorAll("[data-load-samples]")) {
    button.addEventListener("click", () => load(button.parentElement.querySelector("[role=status]")));
  }
  document.addEventListener("collections", ({ detail }) => {
    byId("samples-offered").hidden = !detail.some((of) => of.collection === COLLECTION);
  });
}

function ask(question) {
  document.dispatchEvent(new CustomEvent("ask", { detail: { question, collection: COLLECTION } }));
}

let loading = false;

async function load(status) {
  if (loading) return;
  loading = true;
  status.classList.remove("wrong");
  status.textContent = "sending the sample documents";
  try {
    let job = await send("admin/precompute", "POST", { collection: COLLECTION, documents: DOCUMENTS });
    while (["queued", "running"].includes(job.state)) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      job = await getJson(`admin/jobs/${job.job_id}`);
      const { done, total } = job.progress;
      status.textContent = `${done} of ${total} documents are ready${job.eta_s ? `, ${about(job.eta_s)} left` : ""}`;
    }
    if (job.state !== "succeeded") throw new Error(job.errors[0]?.message ?? `the job was ${job.state}`);
    status.textContent = "";
    await refreshCollections();
    byId("sample-questions").querySelector("button").focus();
  } catch (error) {
    status.textContent = error.message;
    status.classList.add("wrong");
  } finally {
    loading = false;
  }
}
