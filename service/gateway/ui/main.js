// Builds the console: the tabs, what every panel needs at the start, and the way to the key.

import { ask } from "./ask/ask.js";
import { chat } from "./chat/chat.js";
import { documents } from "./documents/documents.js";
import { firstUse } from "./first_use/first_use.js";
import { jobs } from "./jobs/jobs.js";
import { byId } from "./lib/dom.js";
import { tabs } from "./lib/tabs.js";
import { connection } from "./settings/connection.js";
import { settings } from "./settings/settings.js";
import { taken } from "./sign_in/code_flow.js";
import { signIn } from "./sign_in/sign_in.js";
import { tiers } from "./tiers/tiers.js";

const RETRY_MS = 5000;
const returned = taken(); // before the tabs read the address
const choose = tabs(document.querySelector("[role=tablist]"));
function leadToSettings() {
  choose("settings");
  byId(byId("sign-in").hidden ? "key" : "sign-in-begin").focus();
}
const connect = connection(leadToSettings);
const panels = [chat, ask, documents, jobs, tiers, () => settings(load)].map((panel) => panel());

let retry = 0;

async function load() {
  clearTimeout(retry);
  const found = await connect();
  if (found === "served") for (const panel of panels) panel();
  else if (found === "away") retry = setTimeout(load, RETRY_MS); // it starts, perhaps
}

firstUse();
await signIn(returned, leadToSettings);
load();
