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
import { tiers } from "./tiers/tiers.js";

const RETRY_MS = 5000;
const choose = tabs(document.querySelector("[role=tablist]"));
const connect = connection(() => {
  choose("settings");
  byId("key").focus();
});
const panels = [chat, ask, documents, jobs, tiers, () => settings(load)].map((panel) => panel());
firstUse();

let retry = 0;

async function load() {
  clearTimeout(retry);
  if (await connect()) for (const panel of panels) panel();
  else if (byId("key").getAttribute("aria-invalid") !== "true") retry = setTimeout(load, RETRY_MS); // it starts, perhaps
}

load();
