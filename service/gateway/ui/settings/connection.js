// Whether the service answers, and if not, why: shown at the top of every page and beside the key.

import { getJson } from "../lib/api.js";
import { byId } from "../lib/dom.js";
import { session } from "../lib/session.js";

const MISSING = "This service asks for an API key.";
const NEITHER = "Sign in, or give an API key.";
const WRONG = "The service refuses this API key: it was mistyped, revoked, or has expired.";

/** `connect()` asks the service: "served", "refused" or "away". `wanted()` is called when a key is needed. */
export function connection(wanted) {
  const top = byId("service");
  const beside = byId("key-state");

  function say(text, wrong) {
    top.textContent = text;
    top.classList.toggle("wrong", wrong);
    beside.textContent = text;
    beside.classList.toggle("wrong", wrong);
    byId("key").setAttribute("aria-invalid", String(wrong && [MISSING, WRONG].includes(text)));
  }

  document.addEventListener("key-wanted", ({ detail: { sent, message } }) => {
    const missing = byId("sign-in").hidden ? MISSING : NEITHER;
    const text = session.get() ? message : sent ? WRONG : missing;
    const known = top.textContent === text;
    say(text, true);
    if (!known) wanted();
  });

  return async () => {
    try {
      const { data } = await getJson("v1/models");
      say(`serving ${data[0].id}`, false);
      return "served";
    } catch (error) {
      if (error.status === 401) return "refused";
      say(error.message, true);
      // A key without the scope `generate` may still see documents.
      return error.status === 403 ? "served" : "away";
    }
  };
}
