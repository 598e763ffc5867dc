// Who is signed in, in Settings: shown only where the service names an issuer.

import { getJson } from "../lib/api.js";
import { byId } from "../lib/dom.js";
import { session } from "../lib/session.js";
import { leave, leaveForGood, redeem } from "./code_flow.js";

/** Redeems what the issuer sent back, if it did; leads here where that fails. */
export async function signIn(returned, leadHere) {
  const { issuer } = await getJson("ui/sign-in").catch(() => ({}));
  if (!issuer) return;
  byId("sign-in").hidden = false;
  byId("sign-in-issuer").textContent = issuer;
  byId("sign-in-begin").addEventListener("click", () => leave().catch((error) => say(error.message)));
  byId("sign-in-end").addEventListener("click", end);
  document.addEventListener("key-wanted", () => session.get() && say("Your sign-in has ended."));
  document.addEventListener("key-changed", show);
  show();
  if (returned && !(await entered(returned, issuer))) leadHere();
}

async function entered(returned, issuer) {
  try {
    const now = await redeem(returned, issuer);
    const before = session.get();
    session.set(now);
    show();
    // What somebody else was told is not shown to them.
    if (before?.subject !== now.subject) document.dispatchEvent(new CustomEvent("key-changed"));
    return true;
  } catch (error) {
    say(error.message);
    return false;
  }
}

async function end() {
  const ended = session.get();
  session.set(null);
  document.dispatchEvent(new CustomEvent("key-changed"));
  if (!(await leaveForGood(ended.id_token))) location.reload(); // nothing that was shown stays
}

function say(text, wrong = true) {
  byId("sign-in-state").textContent = text;
  byId("sign-in-state").classList.toggle("wrong", wrong);
}

function show() {
  const is = session.get();
  const until = is && new Date(1000 * is.expires).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  say(is ? `Signed in as ${is.name} until ${until}.` : "Nobody is signed in.", false);
  byId("sign-in-begin").textContent = is ? "Sign in again" : "Sign in";
  byId("sign-in-end").hidden = !is;
}
