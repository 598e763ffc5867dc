// One question and its answer on the page.

import { el, fill } from "../lib/dom.js";
import { copy } from "../lib/copy.js";
import { count, time } from "../lib/format.js";
import { withMarks } from "../lib/marks.js";
import { markdown } from "../markdown/markdown.js";
import { passageList } from "./passages.js";

const ENDINGS = { length: "cut at the token limit", deadline: "cut at the deadline" };

/** `regenerate` is called by the button of that name. */
export function exchangeView(number, question, regenerate) {
  const id = `exchange-${number}`;
  const state = el("p", { class: "state" });
  const text = el("div", { class: "markdown", "aria-busy": "false" });
  const passages = passageList(`${id}-passage`);
  const body = markdown(text, (index) => (passages.has(index) ? mark(index) : null));
  const notes = el("ul", { class: "warnings" });
  const figures = el("p", { class: "quiet figures-line" });
  const copying = el("button", { type: "button", class: "plain" }, "Copy");
  const again = el("button", { type: "button", class: "plain", onclick: regenerate }, "Regenerate");
  const actions = el("div", { class: "answer-actions", hidden: true }, copying, again, figures);
  const node = el(
    "li",
    { class: "exchange" },
    el("div", { class: "asked" }, el("h3", { class: "offscreen" }, "You"), el("p", {}, question)),
    el("article", { class: "replied", "aria-labelledby": `${id}-title` }, el("h3", { class: "offscreen", id: `${id}-title` }, `Answer ${number}`), state, text, passages.node, notes, actions),
  );
  let whole = "";
  let frame = 0;

  function mark(index) {
    const label = `Open passage ${index}`;
    return el("button", { type: "button", class: "cite", "aria-label": label, onclick: () => passages.open(index) }, `[${index}]`);
  }

  copying.addEventListener("click", async () => {
    try {
      await copy(whole);
      copying.textContent = "Copied";
    } catch (error) {
      copying.textContent = error.message;
    }
    setTimeout(() => (copying.textContent = "Copy"), 2000);
  });

  return {
    node,
    /** The answer so far is gone, another begins. */
    begin() {
      whole = "";
      body.show("");
      passages.show([], "");
      fill(notes, []);
      actions.hidden = true;
      state.hidden = false;
      state.classList.remove("wrong");
      state.textContent = "searching";
      text.setAttribute("aria-busy", "true");
    },
    /** Says why there is no text yet. */
    waits(words) {
      state.textContent = words;
    },
    sources(found, collection) {
      state.textContent = found.length ? "reading" : "no passages: answering without";
      passages.show(found, collection);
    },
    grow(sofar) {
      state.hidden = true;
      whole = sofar;
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        body.show(whole);
      });
    },
    end(answer) {
      cancelAnimationFrame(frame);
      frame = 0;
      whole = answer.text;
      passages.show(answer.passages, answer.collection);
      body.show(withMarks(whole, answer.attributions));
      text.setAttribute("aria-busy", "false");
      const empty = answer.text ? "" : "(an empty answer)";
      state.textContent = { done: empty, stopped: "stopped", failed: answer.error }[answer.state];
      state.hidden = !state.textContent;
      state.classList.toggle("wrong", answer.state === "failed");
      fill(notes, answer.notes.map((note) => el("li", {}, note)));
      figures.textContent = answer.figures ? inWords(answer.figures) : "";
      copying.hidden = !answer.text;
      actions.hidden = false;
    },
    /** Only the last answer can be made anew: later ones were given what it said. */
    last(is) {
      again.hidden = !is;
    },
    focus: () => copying.focus(),
  };
}

function inWords({ method, ttft, cached, prompt, ending }) {
  const parts = [method, `first token ${time(ttft)}`, `${count(cached)} of ${count(prompt)} tokens from cache`];
  if (ENDINGS[ending]) parts.push(ENDINGS[ending]);
  return parts.join(" · ");
}
