// The page's two dialogs: a question before what cannot be undone, and a text to read.

import { byId, el, fill } from "./dom.js";

/** Asks before something is deleted; true only if it was confirmed. Escape keeps it.
 *
 * Every question has a dialog of its own: a dialog tells that it was closed some time after it
 * has gone, and must not answer the question that was asked in between. */
export function confirmed(question) {
  const dialog = el(
    "dialog",
    { class: "confirm", "aria-label": question },
    el(
      "form",
      { method: "dialog" },
      el("p", {}, question),
      el("div", { class: "actions" }, el("button", { value: "cancel", autofocus: true }, "Keep it"), el("button", { value: "delete", class: "danger" }, "Delete")),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "delete");
    });
  });
}

/** Opens the reading dialog with a title and its content; focus goes back when it is closed. */
export function read(title, content) {
  byId("reader-title").textContent = title;
  fill(byId("reader-content"), content);
  const dialog = byId("reader");
  if (!dialog.open) dialog.showModal();
}
