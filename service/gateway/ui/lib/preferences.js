// What a person prefers, kept in this browser: looks and defaults, never keys, questions or answers.

const NAME = "kvstitch.preferences";
const DEFAULTS = { theme: "auto", method: "", topK: "", maxTokens: "" };

// How the method was kept before it had one of three names.
const EARLIER = { "profile:fast": "method:fastest", "profile:balanced": "", "profile:exact": "method:exact" };

function stored() {
  try {
    const kept = { ...DEFAULTS, ...JSON.parse(localStorage.getItem(NAME) ?? "{}") };
    return { ...kept, method: EARLIER[kept.method] ?? kept.method };
  } catch {
    return { ...DEFAULTS };
  }
}

export const preferences = {
  get: (name) => stored()[name],
  /** Keeps what differs from the defaults; tells the page by the event "preferences". */
  set(name, value) {
    const changed = Object.entries({ ...stored(), [name]: value }).filter(([of, is]) => is !== DEFAULTS[of]);
    if (changed.length) localStorage.setItem(NAME, JSON.stringify(Object.fromEntries(changed)));
    else localStorage.removeItem(NAME);
    document.dispatchEvent(new CustomEvent("preferences", { detail: { name, value } }));
  },
};
