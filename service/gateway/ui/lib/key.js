// The API key: kept in this tab's session, or, where the person says so, in this browser.

import { session } from "./session.js";

const NAME = "kvstitch.key";

export const key = {
  get: () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "",
  /** Whether it outlives the tab. */
  remembered: () => localStorage.getItem(NAME) !== null,
  set(value, { remember = false } = {}) {
    sessionStorage.removeItem(NAME);
    localStorage.removeItem(NAME);
    if (value) (remember ? localStorage : sessionStorage).setItem(NAME, value);
  },
};

/** What requests are sent with: who is signed in comes before a key. */
export const credential = () => session.get()?.token ?? key.get();
