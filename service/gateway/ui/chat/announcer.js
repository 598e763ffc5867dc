// Says a streamed answer to screen readers sentence by sentence: a live region that grew by single
// tokens would stammer.

import { el } from "../lib/dom.js";

/** `hear(text)` takes the whole text so far, `end(text)` the whole text at the end. */
export function announcer(region) {
  let said = 0;
  const say = (text) => {
    if (text.trim()) region.append(el("p", {}, text.trim()));
  };
  return {
    hear(text) {
      const ends = [...text.slice(said).matchAll(/[.!?:]\s|\n/g)];
      if (!ends.length) return;
      const until = said + ends.at(-1).index + 1;
      say(text.slice(said, until));
      said = until;
    },
    end(text) {
      say(text.slice(said));
      said = text.length;
    },
  };
}
