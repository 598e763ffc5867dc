// One select for how to answer: the service's default, a profile, or a method.

import { el, fill } from "./dom.js";

const PROFILES = {
  fast: "fast: nothing recomputed",
  balanced: "balanced",
  exact: "exact: full prefill",
};

/** Fills a select from GET /v1/methods, keeping `value` chosen if it is offered. */
export function offerMethods(select, methods, value = select.value) {
  const usual = methods?.defaults.fusion.method;
  const group = (label, options) => el("optgroup", { label }, options);
  fill(select, [
    el("option", { value: "" }, usual ? `default (${usual})` : "service default"),
    group("Profiles", Object.entries(PROFILES).map(([name, about]) => el("option", { value: `profile:${name}` }, about))),
    group(
      "Methods",
      (methods?.fusion ?? []).map(({ name, unavailable }) =>
        el("option", { value: `method:${name}`, disabled: Boolean(unavailable), title: unavailable }, name),
      ),
    ),
  ]);
  select.value = value;
  if (select.selectedIndex < 0) select.value = "";
}

/** The chosen value as requests take it. */
export function methodOf(value) {
  const [kind, name] = value.split(":");
  if (kind === "profile") return { profile: name };
  return kind === "method" ? { fusion: { method: name } } : {};
}
