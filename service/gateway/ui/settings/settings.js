// The Settings tab: the API key, how to answer by default, and looks.

import { getJson } from "../lib/api.js";
import { byId, el, fill } from "../lib/dom.js";
import { key } from "../lib/key.js";
import { offerMethods } from "../lib/method_choice.js";
import { preferences } from "../lib/preferences.js";
import { session } from "../lib/session.js";

const NUMBERS = { "set-top-k": "topK", "set-max-tokens": "maxTokens" };
const DEFAULTS = { fusion: "Method", eviction: "Eviction", prefix_mode: "Prefix mode", codec: "KV is stored as" };

/** Returns a function that loads the service's defaults. `reconnect` is called with another key. */
export function settings(reconnect) {
  keyForm(reconnect);
  const method = byId("set-method");
  method.addEventListener("change", () => preferences.set("method", method.value));
  for (const [id, name] of Object.entries(NUMBERS)) {
    const field = byId(id);
    field.value = preferences.get(name);
    field.addEventListener("change", () => field.reportValidity() && preferences.set(name, field.value));
  }
  for (const choice of document.querySelectorAll("[name=theme]")) {
    choice.checked = choice.value === preferences.get("theme");
    choice.addEventListener("change", () => {
      preferences.set("theme", choice.value);
      document.documentElement.dataset.theme = choice.value;
    });
  }
  return async () => {
    const methods = await getJson("v1/methods").catch(() => null);
    offerMethods(method, methods, preferences.get("method"));
    fill(byId("service-defaults"), methods ? defaultsOf(methods.defaults) : []);
    // A key may lack the scope for it; then the fields have no suggestions.
    const status = await getJson("status").catch(() => null);
    byId("set-top-k").placeholder = status?.prompt.top_k ?? "";
    byId("set-max-tokens").placeholder = status?.prompt.max_tokens ?? "";
  };
}

function defaultsOf(defaults) {
  return Object.entries(DEFAULTS).map(([name, title]) => {
    const value = defaults[name];
    const words = value === null ? "none" : typeof value === "string" ? value : Object.values(value).join(", ");
    return el("div", {}, el("dt", {}, title), el("dd", {}, words, el("span", { class: "quiet" }, ` from: ${defaults.from[name]}`)));
  });
}

function keyForm(reconnect) {
  const field = byId("key");
  const remember = byId("key-remember");
  const show = () => {
    field.value = key.get();
    remember.checked = key.remembered();
    byId("key-forget").hidden = !key.get();
  };
  const use = (value) => {
    const before = key.get();
    const was = session.get();
    session.set(null);
    key.set(value, { remember: remember.checked });
    show();
    if (was || before !== key.get()) document.dispatchEvent(new CustomEvent("key-changed"));
    reconnect();
  };
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    use(field.value.trim());
  });
  byId("key-forget").addEventListener("click", () => {
    use("");
    field.focus();
  });
  show();
}
