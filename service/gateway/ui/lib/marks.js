// Marks of citations in an answer's text.

const CLOSING = /[.!?…。！？]+["'”’)]*$/;

/**
 * The text with [1] behind every sentence that passage 1 supports, before its full stop. Sentences
 * are spans of code points; those in which the model has put marks by itself, and code, stay.
 */
export function withMarks(text, attributions) {
  const points = [...text];
  let out = "";
  let done = 0;
  for (const { start, end, citations, by } of attributions ?? []) {
    out += points.slice(done, start).join("");
    done = end;
    const sentence = points.slice(start, end).join("");
    const inCode = (out.match(/^\s*(```|~~~)/gm) ?? []).length % 2 === 1;
    const marks = by === "marks" || inCode ? "" : citations.map((index) => `[${index}]`).join("");
    const stop = sentence.search(CLOSING);
    const at = stop < 0 ? sentence.length : stop;
    out += marks ? `${sentence.slice(0, at)} ${marks}${sentence.slice(at)}` : sentence;
  }
  return out + points.slice(done).join("");
}
