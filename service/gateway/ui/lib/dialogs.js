// The page's two dialogs: a question before what cannot be undone, and a text to read.

import { byId, fill } from "./dom.js";

/** Asks before something is deleted; true only if it was confirmed. Escape keeps it. */
export function confirmed(question) {
  const dialog = byId("confirm");
  byId("confirm-text").textContent = question;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true });
  });
}

/** Opens the reading dialog with a title and its content; focus goes back when it is closed. */
export function read(title, content) {
  byId("reader-title").textContent = title;
  fill(byId("reader-content"), content);
  const dialog = byId("reader");
  if (!dialog.open) dialog.showModal();
}
