// Shows one answer while it comes in: its text, its citations, its cost, and its prompt.

import { el, fill } from "../lib/dom.js";
import { count, percent, plural, time } from "../lib/format.js";
import { chipClass, chipLabel, passageNames } from "../lib/passage_names.js";
import { promptStrip } from "./prompt.js";
import { waterfall } from "./waterfall.js";

/** `hear` takes the events of the stream, `beside` what a full prefill takes, {seconds, basis}. */
export function answer(letter, name) {
  const id = `answer-${letter || "one"}`;
  const state = el("p", { class: "state", role: "status" }, "waiting");
  const text = el("p", { class: "answer", "aria-live": "polite", "aria-busy": "true" });
  const citations = el("ol", { class: "citations", "aria-label": "Passages the answer was given" });
  const figures = el("dl", { class: "figures" });
  const warnings = el("ul", { class: "warnings" });
  const stages = el("section", { class: "card", "aria-labelledby": `${id}-stages`, hidden: true });
  const strip = promptStrip(id);
  const title = letter ? `${letter} · ${name}` : name;
  const node = el(
    "article",
    { class: "result", "aria-labelledby": `${id}-title`, data: { letter } },
    el(
      "section",
      { class: "card" },
      el("header", {}, el("h2", { id: `${id}-title` }, title), state),
      text,
      citations,
      warnings,
      figures,
    ),
    stages,
    strip.node,
  );
  let done = null;

  const hearing = {
    sources({ citations: cited }) {
      state.textContent = cited.length ? "reading the prompt" : "no passages: answering without";
      strip.passages(cited);
      showChips(cited);
    },
    token({ text: piece }) {
      state.textContent = "answering";
      text.append(piece);
    },
    done(response) {
      done = response;
      text.textContent = response.text || "(an empty answer)";
      text.setAttribute("aria-busy", "false");
      state.textContent = `${ending(response.finish_reason)} after ${time(response.timing.total_s)}`;
      fill(warnings, [...gateOf(response), ...response.warnings].map((warning) => el("li", {}, warning)));
      fill(figures, costs(response));
      strip.show(response);
      showChips(response.citations);
      stages.hidden = false;
      fill(stages, waterfall(`${id}-stages`, response, null));
    },
  };

  function showChips(cited) {
    const names = passageNames(cited);
    fill(citations, cited.map((citation, i) => chip(citation, names[i], strip)));
  }

  return {
    node,
    hear: (event, data) => hearing[event]?.(data),
    result: () => done,
    fail(message) {
      text.setAttribute("aria-busy", "false");
      state.textContent = message;
      state.classList.add("wrong");
    },
    waits(words) {
      state.textContent = words;
    },
    beside(full) {
      fill(stages, waterfall(`${id}-stages`, done, full));
      fill(figures, costs(done, full));
    },
  };
}

function chip(citation, name, strip) {
  const button = el("button", { type: "button", class: chipClass(citation), "aria-pressed": "false" }, chipLabel(citation, name));
  const section = name.section ? `, ${name.section}` : "";
  const used = citation.used ? ", used" : "";
  const label = `Show passage ${citation.index}: ${name.title}${section}, characters ${citation.char_start} to ${citation.char_end}${used}`;
  button.setAttribute("aria-label", label);
  button.addEventListener("click", () => {
    const lit = strip.light(citation.index);
    for (const other of button.closest("ol").querySelectorAll("button")) {
      other.setAttribute("aria-pressed", String(lit && other === button));
    }
  });
  return el("li", {}, button);
}

function costs(response, full = null) {
  const { usage, cache, timing } = response;
  const exact = response.fusion.method === "vanilla"; // has no other full prefill beside it
  const facts = [
    ["First token", time(timing.ttft_s)],
    ...(exact || !full ? [] : [["Full prefill", `${full.basis === "measured" ? "" : "≈ "}${time(full.seconds)}`]]),
    ["From cache", `${count(usage.prompt_tokens_details.cached_tokens)} of ${count(usage.prompt_tokens)}`],
    ["Computed anew", percent(cache.recomputed_tokens / Math.max(1, usage.prompt_tokens))],
    ["Arithmetic", `${percent(cache.flops / Math.max(1, cache.full_prefill_flops))} of full`],
    ["KV kept", percent(cache.kept_ratio)],
    ...(cache.exact_from === null ? [] : [["Full prefill's", cache.exact_from ? `from token ${cache.exact_from + 1}` : "from the first token"]]),
    ["Answer", plural(usage.completion_tokens, "token")],
  ];
  return facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)));
}

function gateOf({ cache: { gate } }) {
  return gate ? [`The correctness gate (${gate.state}) had ${gate.used.method} run instead: ${gate.why}`] : [];
}

function ending(reason) {
  return { stop: "complete", length: "cut at the token limit", deadline: "cut at the deadline" }[reason] ?? reason;
}
