// The collections that have documents. Whoever shows them listens for the event "collections".

import { getJson } from "./api.js";

/** Asks the service and tells the page; a key without the scope `admin` sees none. */
export async function refreshCollections() {
  let collections = [];
  let known = true;
  try {
    ({ collections } = await getJson("admin/collections"));
  } catch {
    known = false;
  }
  document.dispatchEvent(new CustomEvent("collections", { detail: collections }));
  if (known) document.body.classList.toggle("no-documents", !collections.length);
  return collections;
}
