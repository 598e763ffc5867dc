// The fields that choose a method, made from what the service offers.

import { byId, el, fill } from "../lib/dom.js";
import { methodOptions } from "../lib/method_choice.js";

/** The parameter that says how much is recomputed: [name, facts] of the one that takes "auto". */
const repair = (fusion) => Object.entries(fusion?.parameters ?? {}).find(([, facts]) => facts.auto);

/**
 * A fieldset for one method; `value()` gives it as requests take it. It begins with the method
 * `chosen`: a name, or a paper's.
 */
export function methodFields(title, chosen) {
  const node = byId("method-template").content.cloneNode(true).firstElementChild;
  node.querySelector("legend").textContent = title;
  const field = (name) => node.querySelector(`[name=${name}]`);
  const about = node.querySelector(".about");
  let offered = { fusion: [], eviction: [], names: {} };
  const meant = (name) => offered.names[name] ?? { method: name };
  const known = (name) => offered.fusion.find((method) => method.name === meant(name).method);

  function update() {
    const fusion = known(field("fusion").value);
    const usual = meant(field("fusion").value);
    const eviction = offered.eviction.find((method) => method.name === field("eviction").value);
    const [name, ratio] = repair(fusion) ?? [];
    field("ratio").disabled = !ratio;
    field("ratio").placeholder = ratio ? String(usual[name] ?? ratio.default) : "none";
    field("eviction").disabled = Boolean(fusion?.sparse);
    const budget = fusion?.sparse ? undefined : eviction?.parameters.budget;
    field("budget").disabled = !budget;
    field("budget").placeholder = budget ? String(budget.default) : "all";
    const sparse = fusion?.sparse ? " It evicts by itself." : "";
    const paper = fusion && fusion.name !== field("fusion").value ? `${fusion.name}: ` : "";
    about.textContent = paper + (fusion?.doc ?? "") + sparse + (budget ? ` Then ${eviction.name}: ${eviction.doc}` : "");
  }

  node.addEventListener("change", update);
  return {
    node,
    offer(methods) {
      const before = field("fusion").value || chosen;
      offered = methods;
      fill(field("fusion"), methodOptions(methods, (name) => name));
      field("fusion").value = before;
      const option = ({ name, unavailable }) => el("option", { value: name, disabled: Boolean(unavailable), title: unavailable }, name);
      fill(field("eviction"), [el("option", { value: "" }, "none"), ...methods.eviction.map(option)]);
      update();
    },
    value() {
      const method = field("fusion").value;
      if (!method) return {}; // the methods are not known yet: the service's default
      const fusion = { method };
      const [ratio] = repair(known(method)) ?? [];
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
