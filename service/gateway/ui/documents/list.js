// The list of documents: pages of what the search finds, to read, pin and delete.

import { documentPath, getJson, send } from "../lib/api.js";
import { refreshCollections } from "../lib/collections.js";
import { confirmed } from "../lib/dialogs.js";
import { byId, el, fill } from "../lib/dom.js";
import { count, moment, plural } from "../lib/format.js";
import { metadataFilter } from "./metadata_filter.js";
import { openDocument } from "./preview.js";
import { showReceipt } from "./receipt.js";

const PAGE = 25;
const TYPING_MS = 250;

/** `read()` loads the page that is shown again, `choose(collection)` goes to a collection. */
export function documentList() {
  const status = byId("documents-status");
  const choice = byId("documents-collection");
  const search = byId("documents-search");
  const metadata = byId("documents-filter");
  const rows = byId("documents");
  let before = [null]; // the cursor of every page up to the one that is shown
  let next = null;
  let asked = 0;

  async function read() {
    const turn = (asked += 1);
    await guarded(async () => {
      const where = metadataFilter(metadata.value);
      const query = new URLSearchParams({ collection: choice.value || "default", limit: PAGE });
      if (before.at(-1) !== null) query.set("cursor", before.at(-1));
      if (search.value.trim()) query.set("q", search.value.trim());
      if (where) query.set("filter", JSON.stringify(where));
      const found = await getJson(`admin/documents?${query}`);
      if (turn !== asked) return; // a later search was quicker
      if (!found.documents.length && before.length > 1) return back();
      next = found.next_cursor;
      fill(rows, found.documents.map(rowOf));
      byId("documents-previous").disabled = before.length === 1;
      byId("documents-next").disabled = next === null;
      byId("documents-pages").hidden = before.length === 1 && next === null;
      status.textContent = inWords(found.documents.length, Boolean(search.value.trim() || where));
    });
  }

  function inWords(shown, searched) {
    const from = (before.length - 1) * PAGE;
    const all = choice.selectedOptions[0]?.dataset.documents ?? "0";
    if (!shown) return searched ? "no document matches" : "no documents";
    const more = next !== null || from > 0;
    if (searched) return more ? `matches ${from + 1} to ${from + shown}` : `${plural(shown, "document")} found`;
    return more ? `documents ${from + 1} to ${from + shown} of ${count(Number(all))}` : plural(shown, "document");
  }

  const first = () => {
    before = [null];
    return read();
  };
  const back = () => {
    before.pop();
    return read();
  };

  function rowOf(document) {
    const collection = choice.value;
    const name = document.title || document.doc_id;
    const open = el("button", { type: "button", class: "link", onclick: () => openDocument(document.doc_id, collection) }, name);
    const pin = el("button", { type: "button", "aria-pressed": String(document.pinned), "aria-label": `Pin ${document.doc_id}` }, document.pinned ? "Pinned" : "Pin");
    const remove = el("button", { type: "button", class: "danger", "aria-label": `Delete ${document.doc_id}` }, "Delete");
    const row = el(
      "tr",
      {},
      el("th", { scope: "row" }, open, el("span", { class: "code quiet" }, document.doc_id)),
      [document.num_tokens, document.num_chunks].map((n) => el("td", { class: "number wide-only" }, count(n))),
      el("td", { class: "nowrap wide-only" }, moment(document.updated)),
      el("td", { class: "row-actions" }, pin, remove),
    );
    pin.addEventListener("click", () =>
      guarded(async () => {
        const { pinned } = await send(documentPath(document.doc_id, collection, "pins"), pin.getAttribute("aria-pressed") === "true" ? "DELETE" : "PUT");
        pin.setAttribute("aria-pressed", String(pinned));
        pin.textContent = pinned ? "Pinned" : "Pin";
      }),
    );
    remove.addEventListener("click", () => deletion(document.doc_id, collection, row));
    return row;
  }

  async function deletion(docId, collection, row) {
    if (!(await confirmed(`Delete ${docId}, its text, vectors and KV in every tier?`))) return;
    await guarded(async () => {
      const receipt = await send(documentPath(docId, collection), "DELETE");
      const at = [...rows.children].indexOf(row);
      showReceipt(byId("receipt"), docId, receipt);
      await refreshCollections(); // which loads the list anew
      await read();
      const neighbour = rows.children[Math.min(at, rows.children.length - 1)];
      (neighbour?.querySelector("button.danger") ?? search).focus();
    });
  }

  async function deleteAll() {
    const { value: collection } = choice;
    if (!(await confirmed(`Delete the collection ${collection} with all its documents, their vectors and KV in every tier?`))) return;
    await guarded(async () => {
      const receipt = await send(`admin/collections/${encodeURIComponent(collection)}`, "DELETE");
      showReceipt(byId("receipt"), `The collection ${collection}`, receipt);
      await refreshCollections();
      search.focus();
    });
  }

  async function guarded(work) {
    try {
      await work();
      status.classList.remove("wrong");
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("wrong");
    }
  }

  let typing = 0;
  const typed = () => {
    clearTimeout(typing);
    typing = setTimeout(first, TYPING_MS);
  };
  search.addEventListener("input", typed);
  byId("documents-find").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    first();
  });
  metadata.addEventListener("change", first);
  choice.addEventListener("change", first);
  byId("documents-previous").addEventListener("click", back);
  byId("documents-next").addEventListener("click", () => {
    before.push(next);
    read();
  });
  byId("documents-delete-all").addEventListener("click", deleteAll);
  document.addEventListener("collections", ({ detail }) => {
    const { value } = choice;
    fill(choice, detail.map((c) => el("option", { value: c.collection, data: { documents: c.documents } }, `${c.collection} (${count(c.documents)})`)));
    if (!detail.length) choice.append(el("option", { value: "default", data: { documents: 0 } }, "default (0)"));
    if (detail.some((c) => c.collection === value)) choice.value = value;
    byId("documents-delete-all").hidden = !detail.length;
    if (choice.value !== value) before = [null];
    if (!byId("panel-documents").hidden) read();
  });

  return {
    read,
    choose(collection) {
      choice.value = collection;
      return first();
    },
  };
}
