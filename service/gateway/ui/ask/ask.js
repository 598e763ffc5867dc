// The Ask tab: one question with one or two methods, one after the other so that neither slows
// the other down.

import { getJson, send, stream } from "../lib/api.js";
import { byId, el, fill } from "../lib/dom.js";
import { preferences } from "../lib/preferences.js";
import { waiting } from "../lib/waiting.js";
import { answer } from "./answer.js";
import { methodFields, methodName } from "./methods.js";

const PATH = "v1/rag/generate";

/** Returns a function that loads methods and collections from the service. */
export function ask() {
  const [kind, preferred] = preferences.get("method").split(":");
  const first = methodFields("Method A", kind === "method" ? preferred : "balanced");
  const second = methodFields("Method B", "exact");
  byId("methods").append(first.node, second.node);
  const compare = byId("compare");
  const both = () => {
    second.node.hidden = !compare.checked;
    first.node.querySelector("legend").textContent = compare.checked ? "Method A" : "Method";
  };
  compare.addEventListener("change", both);
  both();

  let running = null;
  let measured = null; // the last full prefill: what was asked, and its seconds to the first token
  byId("stop").addEventListener("click", () => running?.abort());
  byId("panel-ask").addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) runAll(compare.checked ? [first, second] : [first]);
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    byId("ask").requestSubmit();
  });

  document.addEventListener("collections", ({ detail }) =>
    fill(byId("collections"), detail.map((c) => el("option", { value: c.collection }))),
  );

  async function runAll(chosen) {
    running = new AbortController();
    const { signal } = running;
    const asked = common();
    const letters = chosen.length > 1 ? ["A", "B"] : [""];
    const views = chosen.map((fields, i) => answer(letters[i], methodName(fields.value())));
    fill(byId("results"), views.map((view) => view.node)).classList.toggle("two", views.length > 1);
    busy(true);
    byId("verdict").textContent = "";
    const texts = [];
    for (const [i, view] of views.entries()) {
      const result = await runOne(view, { ...asked, ...chosen[i].value() }, signal);
      if (result) texts.push(result.text);
      if (result?.fusion.method === "vanilla" && !result.usage.prompt_tokens_details.cached_tokens) {
        measured = { asked: JSON.stringify(asked), seconds: result.timing.ttft_s };
      }
      if (signal.aborted) break;
    }
    for (const [i, view] of views.entries()) {
      if (view.result()) view.beside(await fullPrefill({ ...asked, ...chosen[i].value() }, JSON.stringify(asked)));
    }
    busy(false);
    running = null;
    byId("verdict").textContent = texts.length === 2 ? verdict(texts) : "";
  }

  /** What a full prefill takes: as it was measured for this question, else as it is expected. */
  async function fullPrefill(body, asked) {
    if (measured?.asked === asked) return { seconds: measured.seconds, basis: "measured" };
    const plan = await send(PATH, "POST", { ...body, explain: true }).catch(() => null);
    return plan && { seconds: plan.full_prefill_ttft_s, basis: plan.measured ? "estimate" : "assumed" };
  }

  return async () => {
    const methods = await getJson("v1/methods").catch(() => null);
    if (methods) for (const fields of [first, second]) fields.offer(methods);
    // A key may lack the scope for either; then the fields have no suggestions.
    const status = await getJson("status").catch(() => null);
    if (status) {
      byId("top-k").placeholder = status.prompt.top_k;
      byId("max-tokens").placeholder = status.prompt.max_tokens;
    }
  };
}

async function runOne(view, body, signal) {
  const come = waiting(PATH, body, view.waits);
  try {
    await stream(PATH, { ...body, include_text: true, include_tokens: true }, signal, (event, data) => {
      if (event === "token") come();
      view.hear(event, data);
    });
    return view.result();
  } catch (error) {
    view.fail(error.name === "AbortError" ? "stopped" : error.message);
    return null;
  } finally {
    come();
  }
}

/** The fields that both methods share; for empty ones the service's defaults apply. */
function common() {
  const body = { question: byId("question").value };
  const text = {
    collection: byId("collection").value.trim(),
    retrieval: byId("retrieval").value,
    cold: byId("cold").value,
  };
  const numbers = { top_k: byId("top-k").value, max_tokens: byId("max-tokens").value, exact_below: byId("exact-below").value };
  for (const [name, value] of Object.entries(text)) if (value) body[name] = value;
  for (const [name, value] of Object.entries(numbers)) if (value !== "") body[name] = Number(value);
  return body;
}

function busy(is) {
  byId("send").disabled = is;
  byId("stop").hidden = !is;
}

function verdict([a, b]) {
  return a === b ? "A and B gave the same answer." : "A and B gave different answers.";
}
