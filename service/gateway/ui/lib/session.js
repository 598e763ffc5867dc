// Who is signed in, in this tab only: the token that requests are sent with goes with the tab.

const NAME = "kvstitch.session";

export const session = {
  /** {token, subject, name, expires (seconds since 1970), id_token}; null: nobody is. */
  get() {
    try {
      return JSON.parse(sessionStorage.getItem(NAME));
    } catch {
      return null;
    }
  },
  set(value) {
    if (value) sessionStorage.setItem(NAME, JSON.stringify(value));
    else sessionStorage.removeItem(NAME);
  },
};
