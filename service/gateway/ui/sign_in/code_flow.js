// Signing in at the issuer: authorisation code with PKCE. What this browser makes for it is kept for
// this tab until it comes back, and used once.

import { getJson, ROOT, send } from "../lib/api.js";

const NAME = "kvstitch.sign-in";
const PLACE = new URL("ui/", ROOT).href; // what is registered at the issuer

const base64url = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** Leaves for the issuer. Throws an Error that says why that cannot be. */
export async function leave() {
  if (!window.isSecureContext) throw new Error("Signing in needs https, or localhost.");
  const { authorization_endpoint: endpoint, parameters } = await getJson("ui/sign-in/provider");
  const made = { state: random(), nonce: random(), verifier: random(), tab: location.hash };
  const challenge = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(made.verifier));
  sessionStorage.setItem(NAME, JSON.stringify(made));
  goTo(endpoint, {
    ...parameters,
    redirect_uri: PLACE,
    state: made.state,
    nonce: made.nonce,
    code_challenge: base64url(challenge),
    code_challenge_method: "S256",
  });
}

/** What the issuer sent back in the address, which is cleared of it; null: nothing. */
export function taken() {
  const back = new URLSearchParams(location.search);
  if (!back.has("state") || !(back.has("code") || back.has("error"))) return null;
  const made = JSON.parse(sessionStorage.getItem(NAME) ?? "null");
  sessionStorage.removeItem(NAME);
  history.replaceState(null, "", `${location.pathname}${made?.tab ?? ""}`);
  return { back, made };
}

/** Who signed in. Throws an Error that says why nobody did. */
export async function redeem({ back, made }, issuer) {
  const wrong = "This sign-in was not begun in this tab, or is used up: sign in again.";
  if (!made || back.get("state") !== made.state) throw new Error(wrong);
  if (back.has("iss") && back.get("iss") !== issuer) throw new Error("Another issuer answers: sign in again.");
  if (back.has("error")) {
    const why = back.get("error_description");
    throw new Error(`The sign-in was refused: ${back.get("error")}${why ? ` (${why})` : ""}.`);
  }
  const { verifier, nonce } = made;
  return send("ui/sign-in", "POST", { code: back.get("code"), verifier, nonce, redirect_uri: PLACE });
}

/** Leaves to end the session at the issuer, too; false if it has no place for that. */
export async function leaveForGood(idToken) {
  const { end_session_endpoint: endpoint, parameters } = await getJson("ui/sign-in/provider").catch(() => ({}));
  if (!endpoint) return false;
  goTo(endpoint, { id_token_hint: idToken, client_id: parameters.client_id, post_logout_redirect_uri: PLACE });
  return true;
}

function goTo(endpoint, parameters) {
  const url = new URL(endpoint);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  location.assign(url);
}
