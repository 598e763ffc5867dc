// The Documents tab: lists, pins and deletes the documents of a collection.

import { getJson, send } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { count, moment, plural } from "./format.js";

const PAGE = 100;

/** Returns a function that reloads the tab. */
export function documents() {
  const panel = byId("panel-documents");
  const status = byId("documents-status");
  const choice = byId("documents-collection");
  let cursor = null;

  async function read() {
    if (panel.hidden) return;
    await guarded(async () => {
      const { collections } = await getJson("admin/collections");
      const before = choice.value;
      fill(choice, collections.map((c) => el("option", { value: c.collection }, `${c.collection} (${count(c.documents)})`)));
      if (!collections.length) choice.append(el("option", { value: "default" }, "default (0)"));
      if (collections.some((c) => c.collection === before)) choice.value = before;
      cursor = null;
      await page();
    });
  }

  async function page() {
    const query = new URLSearchParams({ collection: choice.value, limit: PAGE });
    if (cursor) query.set("cursor", cursor);
    const found = await getJson(`admin/documents?${query}`);
    const rows = found.documents.map(rowOf);
    if (cursor) byId("documents").append(...rows);
    else fill(byId("documents"), rows);
    cursor = found.next_cursor;
    byId("documents-more").hidden = !cursor;
    status.textContent = `${plural(byId("documents").children.length, "document")} shown${cursor ? ", there are more" : ""}`;
  }

  function rowOf(document) {
    const remove = el("button", { type: "button", class: "danger", "aria-label": `Delete ${document.doc_id}` }, "Delete");
    const row = el(
      "tr",
      {},
      el("th", { scope: "row", class: "code" }, document.doc_id),
      el("td", {}, document.title),
      [document.num_tokens, document.num_chunks, document.num_chars].map((n) => el("td", { class: "number" }, count(n))),
      el("td", { class: "nowrap" }, moment(document.updated)),
      el("td", {}, document.pinned ? "pinned" : ""),
      el("td", {}, remove),
    );
    remove.addEventListener("click", () => deletion(document, row));
    return row;
  }

  async function deletion(document, row) {
    if (!(await confirmed(`Delete ${document.doc_id}, its text, vectors and KV in every tier?`))) return;
    await guarded(async () => {
      const query = new URLSearchParams({ collection: choice.value });
      const path = `admin/documents/${document.doc_id.split("/").map(encodeURIComponent).join("/")}?${query}`;
      const receipt = await send(path, "DELETE");
      const next = row.nextElementSibling ?? row.previousElementSibling;
      row.remove();
      (next?.querySelector("button") ?? choice).focus();
      status.textContent = inWords(document.doc_id, receipt);
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

  panel.addEventListener("shown", read);
  choice.addEventListener("change", () => {
    cursor = null;
    guarded(page);
  });
  byId("documents-refresh").addEventListener("click", read);
  byId("documents-more").addEventListener("click", () => guarded(page));
  return read;
}

function confirmed(question) {
  const dialog = byId("confirm");
  byId("confirm-text").textContent = question;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true });
  });
}

function inWords(name, receipt) {
  const copies = Object.entries(receipt.kv).map(([tier, n]) => `${tier} ${n}`);
  const kv = copies.length ? ` Copies of KV deleted: ${copies.join(", ")}.` : "";
  const owed = receipt.state === "owed" ? ` KV of ${plural(receipt.owed_chunks, "chunk")} is still owed (receipt ${receipt.receipt_id}).` : "";
  return `${name} is deleted, ${plural(receipt.chunks, "chunk")}.${kv}${owed}`;
}
