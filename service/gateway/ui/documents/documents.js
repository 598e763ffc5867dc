// The Documents tab: files in, and what is stored.

import { refreshCollections } from "../lib/collections.js";
import { byId } from "../lib/dom.js";
import { documentList } from "./list.js";
import { uploads } from "./uploads.js";

/** Returns a function that reloads the tab. */
export function documents() {
  const list = documentList();
  uploads(async (collection) => {
    await refreshCollections();
    // Shows what came in, unless the person is looking for something.
    if (!byId("documents-search").value && !byId("documents-filter").value) list.choose(collection);
  });
  byId("panel-documents").addEventListener("shown", refreshCollections);
  byId("documents-refresh").addEventListener("click", refreshCollections);
  return refreshCollections;
}
