// How to answer: exact, balanced (the service's default) or fastest; behind "More" the methods by
// the names of their papers.

import { el, fill } from "./dom.js";

const ABOUT = {
  exact: "exact: full prefill",
  balanced: "balanced",
  fastest: "fastest",
};
let named = {}; // what the three stand for, as the service says

/** Options of the three, whose values `valueOf` makes, then those of all methods. */
export function methodOptions(methods, valueOf) {
  named = methods?.names ?? {};
  const paper = (name) => (named[name] ? `${named[name].method}` : null);
  return [
    ...Object.entries(ABOUT).map(([name, about]) => el("option", { value: valueOf(name), title: paper(name) }, about)),
    el(
      "optgroup",
      { label: "More, by paper" },
      (methods?.fusion ?? []).map(({ name, unavailable }) =>
        el("option", { value: valueOf(name), disabled: Boolean(unavailable), title: unavailable || null }, name),
      ),
    ),
  ];
}

/** Fills a select from GET /v1/methods, keeping `value` chosen if it is offered; "" is balanced. */
export function offerMethods(select, methods, value = select.value) {
  fill(select, methodOptions(methods, (name) => (name === "balanced" ? "" : `method:${name}`)));
  select.value = value;
  if (select.selectedIndex < 0) select.value = "";
}

/** The chosen value as requests take it. */
export function methodOf(value) {
  const [kind, name] = value.split(":");
  return kind === "method" ? { fusion: { method: name } } : {};
}

/** What a fusion is called that has answered: one of the three, else its own name. */
export function wordFor(fusion) {
  const same = (of) => Object.keys({ ...of, ...fusion }).every((name) => of[name] === fusion[name]);
  return Object.keys(named).find((name) => same(named[name])) ?? fusion.method;
}
