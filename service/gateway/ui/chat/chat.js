// The Chat tab: a conversation about the documents, kept in this tab until it is cleared.

import { getJson } from "../lib/api.js";
import { byId, el, fill } from "../lib/dom.js";
import { methodOf, offerMethods } from "../lib/method_choice.js";
import { preferences } from "../lib/preferences.js";
import { announcer } from "./announcer.js";
import { answering } from "./answering.js";
import { conversation } from "./conversation.js";
import { exchangeView } from "./exchange.js";

/** Returns a function that loads what can be chosen from the service. */
export function chat() {
  const talk = conversation();
  const views = [];
  const field = byId("chat-text");
  const method = byId("chat-method");
  let running = null;
  let told = false;

  function show() {
    fill(byId("exchanges"), []);
    views.length = 0;
    for (const { question, answer } of talk.exchanges()) place(question).end(answer);
    settle();
  }

  function place(question) {
    const at = views.length;
    const view = exchangeView(at + 1, question, () => answer(at));
    views.push(view);
    byId("exchanges").append(view.node);
    return view;
  }

  function settle() {
    byId("panel-chat").classList.toggle("begun", views.length > 0);
    byId("chat-clear").hidden = !views.length;
    for (const [i, view] of views.entries()) view.last(i === views.length - 1);
  }

  function ask(question) {
    if (running || !question.trim()) return;
    const at = talk.add(question.trim());
    place(talk.exchanges()[at].question);
    field.value = "";
    grow();
    settle();
    answer(at);
  }

  async function answer(at) {
    if (running) return;
    running = new AbortController();
    const { signal } = running;
    const view = views[at];
    const region = byId("chat-live");
    fill(region, []);
    const voice = announcer(region);
    busy(true);
    view.begin();
    view.node.scrollIntoView({ block: "nearest" });
    const from = byId("chat-collection").value;
    const result = await answering(talk, at, choices(), signal, {
      sources: (passages) => view.sources(passages, from),
      waits: (words) => view.waits(words),
      text(sofar) {
        const follow = atEnd();
        view.grow(sofar);
        voice.hear(sofar);
        if (follow) requestAnimationFrame(() => view.node.scrollIntoView({ block: "end" }));
      },
    });
    running = null;
    busy(false);
    if (views[at] !== view) return; // cleared meanwhile
    voice.end(result.state === "failed" ? result.error : result.text);
    talk.answered(at, result);
    view.end(result);
    view.node.scrollIntoView({ block: "end" });
  }

  function choices() {
    const body = methodOf(method.value);
    if (byId("chat-collection").value) body.collection = byId("chat-collection").value;
    for (const [name, value] of [["top_k", preferences.get("topK")], ["max_tokens", preferences.get("maxTokens")]]) {
      if (value !== "") body[name] = Number(value);
    }
    return body;
  }

  function clear() {
    running?.abort();
    talk.clear();
    show();
    fill(byId("chat-live"), []);
  }

  function busy(is) {
    byId("chat-send").hidden = is;
    byId("chat-stop").hidden = !is;
    if (is && document.activeElement === document.body) byId("chat-stop").focus();
    else if (!is && document.activeElement === document.body) field.focus();
  }

  /** The field is as high as its text, up to a third of the page. */
  function grow() {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, window.innerHeight / 3)}px`;
  }

  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(field.value);
  });
  field.addEventListener("input", grow);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask(field.value);
  });
  byId("panel-chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("chat-stop").addEventListener("click", () => running?.abort());
  byId("chat-clear").addEventListener("click", () => {
    clear();
    field.focus();
  });
  document.addEventListener("ask", ({ detail: { question, collection } }) => {
    chooseCollection(collection);
    ask(question);
  });
  // What one key could see is not shown to the next.
  document.addEventListener("key-changed", clear);
  document.addEventListener("preferences", ({ detail: { name, value } }) => {
    if (name !== "method") return;
    method.value = value;
    if (method.selectedIndex < 0) method.value = "";
  });
  document.addEventListener("collections", ({ detail }) => offerCollections(detail.map((of) => of.collection)));

  show();
  return async () => {
    const methods = await getJson("v1/methods").catch(() => null);
    offerMethods(method, methods, told ? method.value : preferences.get("method"));
    told = Boolean(methods);
  };
}

const atEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;

function offerCollections(names) {
  const select = byId("chat-collection");
  const before = select.value;
  fill(select, [...new Set(["default", ...names])].map((name) => el("option", { value: name === "default" ? "" : name }, name)));
  select.value = before;
  // Where there is nothing but one collection, that is the one to ask about.
  if (select.selectedIndex < 0 || (!before && names.length && !names.includes("default"))) {
    select.value = names.includes("default") ? "" : (names[0] ?? "");
  }
}

function chooseCollection(name) {
  const select = byId("chat-collection");
  const value = name === "default" ? "" : name;
  if (![...select.options].some((option) => option.value === value)) select.append(el("option", { value }, name));
  select.value = value;
}
