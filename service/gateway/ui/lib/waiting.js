// What an answer waits for, where its first token does not come at once.

import { getJson, send } from "./api.js";
import { count, plural } from "./format.js";

const SOON_MS = 1500;
const OPEN = ["queued", "running"];

/**
 * Calls `say` with a sentence if the answer to `body` at `path` still waits after a moment; returns
 * a function that ends that.
 */
export function waiting(path, body, say) {
  let over = false;
  const timer = setTimeout(async () => {
    const words = await reason(path, body).catch(() => "");
    if (words && !over) say(words);
  }, SOON_MS);
  return () => {
    over = true;
    clearTimeout(timer);
  };
}

async function reason(path, body) {
  const plan = await send(path, "POST", { ...body, explain: true });
  if (plan.fusion.method === "vanilla") return `exact: all ${count(plan.prompt_tokens)} tokens of the prompt are computed`;
  const missing = plan.documents.filter(({ tier }) => tier === "cold").length;
  if (!missing) return "";
  const left = await documentsLeft();
  const which = missing === plan.documents.length ? "them" : `${missing} of its ${plan.documents.length} passages`;
  if (left) return `${plural(left, "document")} ${left === 1 ? "is" : "are"} still being precomputed: this answer reads ${which} the slow way`;
  return `${missing} of ${plural(plan.documents.length, "passage")} ${missing === 1 ? "is" : "are"} not precomputed: this answer reads ${missing === 1 ? "it" : "them"} the slow way`;
}

/** Documents of jobs under way whose KV is not stored yet; 0 also where the key may not see them. */
async function documentsLeft() {
  const { jobs } = await getJson("admin/jobs?limit=50").catch(() => ({ jobs: [] }));
  return jobs
    .filter(({ state }) => OPEN.includes(state))
    .reduce((sum, { progress }) => sum + progress.total - progress.done - progress.failed - progress.cancelled, 0);
}
