// Asks for one answer of the conversation. When it no longer fits the model's context, the earliest
// turns are left out, one by one, and the answer says so.

import { stream } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { wordFor } from "../lib/method_choice.js";
import { waiting } from "../lib/waiting.js";

const PATH = "v1/rag/generate";

/**
 * The answer to exchange `at` as the conversation keeps it. `hear` gets `sources(passages)`,
 * `waits(words)` where the first token takes long, and `text(soFar)` on the way. Never throws: what went wrong is the answer's state.
 */
export async function answering(talk, at, choices, signal, hear) {
  let text = "";
  let passages = [];
  let result = null;
  let left = 0;
  let come = () => {};
  const collection = choices.collection ?? "default";
  const heard = {
    sources({ citations }) {
      passages = citations;
      hear.sources(citations);
    },
    token({ text: piece }) {
      come();
      text += piece;
      hear.text(text);
    },
    done(response) {
      result = response;
      text = response.text;
      passages = response.citations;
    },
  };
  const kept = (state, error = "") => ({
    ...{ state, text, error, passages, collection },
    attributions: result?.attributions ?? [],
    notes: [...notesOf(left), ...(result?.warnings ?? [])],
    figures: result && figuresOf(result),
  });
  for (;;) {
    const { turns, earlier } = talk.messages(at, left);
    const body = { messages: turns, ...choices };
    come = waiting(PATH, body, hear.waits);
    try {
      await stream(PATH, { ...body, include_text: true }, signal, (event, data) => heard[event]?.(data));
      return result ? kept("done") : kept("failed", "the answer ended before it was complete");
    } catch (error) {
      if (error.name === "AbortError") return kept("stopped");
      if (error.code !== "prompt_too_long" || left >= earlier) return kept("failed", error.message);
      left += 1;
    } finally {
      come();
    }
  }
}

const notesOf = (left) =>
  left ? [`The model's context is full: the first ${plural(left, "exchange")} of the conversation ${left === 1 ? "was" : "were"} left out.`] : [];

function figuresOf({ fusion, cache, timing, usage, finish_reason: ending }) {
  return {
    method: wordFor(cache.gate?.used ?? fusion),
    ttft: timing.ttft_s,
    cached: usage.prompt_tokens_details.cached_tokens,
    prompt: usage.prompt_tokens,
    ending,
  };
}
