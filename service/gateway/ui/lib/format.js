// Formats numbers for people; in English, because the whole page is.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (value) => value.toLocaleString("en");

export function bytes(value) {
  const power = value > 0 ? Math.min(UNITS.length - 1, Math.floor(Math.log2(value) / 10)) : 0;
  const scaled = value / 2 ** (10 * power);
  return `${scaled >= 100 || power === 0 ? Math.round(scaled) : scaled.toPrecision(3)} ${UNITS[power]}`;
}

export function time(seconds) {
  const ms = 1000 * seconds;
  if (ms >= 10_000) return `${seconds.toFixed(1)} s`;
  if (ms >= 1000) return `${seconds.toFixed(2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export const moment = (unix) =>
  new Date(1000 * unix).toLocaleString("sv", { dateStyle: "short", timeStyle: "medium" });

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A duration that is an estimate: "about 40 s", "about 5 min". */
export function about(seconds) {
  if (seconds < 1) return "less than 1 s";
  if (seconds < 90) return `about ${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `about ${Math.round(seconds / 60)} min`;
  return `about ${(seconds / 3600).toFixed(1)} h`;
}

/** Where the code point number `at` of a text begins, in UTF-16 units: the API counts code points. */
export function unitsAt(text, at) {
  let units = 0;
  for (let points = 0; points < at && units < text.length; points += 1) {
    units += text.codePointAt(units) > 0xffff ? 2 : 1;
  }
  return units;
}
