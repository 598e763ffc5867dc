// The fields that choose a method, made from what the service offers.

import { byId, el } from "../lib/dom.js";

/** The parameter that says how much is recomputed: [name, facts] of the one that takes "auto". */
const repair = (fusion) => Object.entries(fusion?.parameters ?? {}).find(([, facts]) => facts.auto);

/**
 * A fieldset for one method; `value()` gives it as requests take it. It begins with the method
 * `chosen`, or with the service's default if that is empty.
 */
export function methodFields(title, chosen) {
  const node = byId("method-template").content.cloneNode(true).firstElementChild;
  node.querySelector("legend").textContent = title;
  const field = (name) => node.querySelector(`[name=${name}]`);
  const about = node.querySelector(".about");
  let offered = { fusion: [], eviction: [], defaults: { fusion: {} } };

  function update() {
    const fusion = offered.fusion.find((method) => method.name === field("fusion").value);
    const eviction = offered.eviction.find((method) => method.name === field("eviction").value);
    const [, ratio] = repair(fusion) ?? [];
    field("ratio").disabled = !ratio;
    field("ratio").placeholder = ratio ? String(ratio.default) : "none";
    field("eviction").disabled = Boolean(fusion?.sparse);
    const budget = fusion?.sparse ? undefined : eviction?.parameters.budget;
    field("budget").disabled = !budget;
    field("budget").placeholder = budget ? String(budget.default) : "all";
    const sparse = fusion?.sparse ? " It evicts by itself." : "";
    about.textContent = (fusion?.doc ?? "") + sparse + (budget ? ` Then ${eviction.name}: ${eviction.doc}` : "");
  }

  node.addEventListener("change", update);
  return {
    node,
    offer(methods) {
      const usual = methods.defaults.fusion;
      const before = field("fusion").value || chosen || usual.method;
      const fresh = !field("fusion").value && !chosen;
      offered = methods;
      const option = (method) =>
        el("option", { value: method.name, disabled: Boolean(method.unavailable), title: method.unavailable }, method.name);
      field("fusion").replaceChildren(...methods.fusion.map(option));
      field("fusion").value = before;
      field("eviction").replaceChildren(el("option", { value: "" }, "none"), ...methods.eviction.map(option));
      const [ratio] = repair(methods.fusion.find((method) => method.name === before)) ?? [];
      if (fresh && ratio) field("ratio").value = usual[ratio] ?? "";
      update();
    },
    value() {
      const usual = offered.defaults.fusion;
      const method = field("fusion").value;
      if (!method) return {}; // the methods are not known yet: the service's default
      const fusion = method === usual.method ? { ...usual } : { method };
      const [ratio] = repair(offered.fusion.find((method) => method.name === fusion.method)) ?? [];
      if (ratio) delete fusion[ratio];
      if (ratio && field("ratio").value) fusion[ratio] = Number(field("ratio").value);
      const name = field("eviction").disabled ? "" : field("eviction").value;
      if (!name) return { fusion };
      const eviction = { method: name };
      if (field("budget").value) eviction.budget = Number(field("budget").value);
      return { fusion, eviction };
    },
  };
}

/** A method in words: "a3, ratio 0.15, then snapkv of 64". */
export function methodName({ fusion, eviction }) {
  if (!fusion) return "the service's default";
  const { method, ...parameters } = fusion;
  const given = Object.entries(parameters).map(([parameter, value]) => `, ${parameter} ${value}`).join("");
  const evicts = eviction ? `, then ${eviction.method}${eviction.budget ? ` of ${eviction.budget}` : ""}` : "";
  return `${method}${given}${evicts}`;
}
