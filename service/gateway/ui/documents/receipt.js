// Shows the receipt of a deletion: what is gone, and what is still owed.

import { getJson } from "../lib/api.js";
import { el, fill } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";

const TIERS = { memory: "RAM", ssd: "SSD", redis: "Redis", s3: "S3" };

/** Puts the receipt into `place`, where it stays until it is dismissed. */
export function showReceipt(place, what, receipt) {
  const owed = receipt.state === "owed";
  const again = el("button", { type: "button" }, "Look again");
  const dismiss = el("button", { type: "button", onclick: () => fill(place, []) }, "Dismiss");
  again.addEventListener("click", async () => {
    try {
      showReceipt(place, what, await getJson(`admin/receipts/${receipt.receipt_id}`));
    } catch (error) {
      again.after(el("span", { class: "wrong" }, error.message));
    }
  });
  fill(place, [
    el(
      "section",
      { class: "card receipt", "aria-label": "Receipt of the deletion" },
      el("header", {}, el("h3", {}, `${what} is deleted`), el("span", { class: `badge ${owed ? "waiting" : "succeeded"}` }, receipt.state)),
      el("dl", { class: "figures" }, factsOf(receipt).map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)))),
      owed ? el("p", {}, `KV of ${plural(receipt.owed_chunks, "chunk")} is deleted as soon as ${tiers(receipt.unreached)} can be reached again.`) : null,
      el("div", { class: "actions" }, owed ? again : null, dismiss),
    ),
  ]);
}

function factsOf(receipt) {
  const kv = Object.entries(receipt.kv).map(([tier, n]) => `${TIERS[tier] ?? tier} ${count(n)}`);
  return [
    ["Receipt", receipt.receipt_id],
    ["Documents", count(receipt.documents)],
    ["Chunks", count(receipt.chunks)],
    ["Copies of KV deleted", kv.join(", ") || "none"],
  ];
}

const tiers = (names) => names.map((name) => TIERS[name] ?? name).join(" and ") || "the worker";
