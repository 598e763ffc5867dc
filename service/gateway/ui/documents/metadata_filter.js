// Turns what a person types into a filter of the API: "kind=manual year>=2020", or JSON.

const OPERATORS = { "=": "eq", "!=": "ne", ">=": "gte", "<=": "lte", ">": "gt", "<": "lt" };
const TEST = /\s*([^\s=!<>]+)(!=|>=|<=|=|>|<)("[^"]*"|\S+)\s*/y;

/** The filter, null for an empty text; throws an Error that says what is wrong. */
export function metadataFilter(text) {
  const typed = text.trim();
  if (!typed) return null;
  if (typed.startsWith("{")) {
    try {
      return JSON.parse(typed);
    } catch (error) {
      throw new Error(`the metadata filter is no valid JSON: ${error.message}`);
    }
  }
  const tests = [];
  TEST.lastIndex = 0;
  while (TEST.lastIndex < typed.length) {
    const from = TEST.lastIndex;
    const found = TEST.exec(typed);
    if (!found) throw new Error(`the metadata filter: write name=value instead of “${typed.slice(from, from + 40)}”`);
    const [, name, operator, value] = found;
    tests.push({ [name]: { [OPERATORS[operator]]: valueOf(value) } });
  }
  return tests.length === 1 ? tests[0] : { and: tests };
}

/** JSON where it is JSON (2020, true, "2020"), else the text itself. */
function valueOf(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? text : value;
  } catch {
    return text;
  }
}
