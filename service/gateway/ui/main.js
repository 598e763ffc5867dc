// Builds the console: the tabs, the API key, and what every panel needs at the start.

import { getJson, key } from "./api.js";
import { ask } from "./ask.js";
import { documents } from "./documents.js";
import { byId } from "./dom.js";
import { jobs } from "./jobs.js";
import { tabs } from "./tabs.js";
import { tiers } from "./tiers.js";

const panels = [ask, documents, jobs, tiers].map((panel) => panel());

byId("key").value = key.get();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  document.body.classList.remove("key-wanted");
  load();
});
document.addEventListener("key-wanted", () => {
  if (document.body.classList.contains("key-wanted")) return;
  document.body.classList.add("key-wanted");
  byId("service").textContent = "This service asks for an API key.";
  byId("key").focus();
});

async function load() {
  try {
    const { data } = await getJson("v1/models");
    byId("service").textContent = `serving ${data[0].id}`;
  } catch (error) {
    if (error.status !== 401) byId("service").textContent = error.message;
    return;
  }
  for (const panel of panels) panel();
}

tabs(document.querySelector("[role=tablist]"));
load();
