// The turns of the conversation, kept in this tab's session storage. Knows nothing of the page.

const NAME = "kvstitch.chat";
const ANSWERED = ["done", "stopped"];

/**
 * A list of exchanges `{question, answer}`; an answer is
 * `{state, text, error, passages, figures, collection}` with the state "done", "stopped" or "failed".
 */
export function conversation() {
  let exchanges = read();

  function save() {
    // The session has room for some millions of characters. Passages' texts are what is long, and
    // those of early answers are missed least.
    for (let bare = 0; bare <= exchanges.length; bare += 1) {
      try {
        sessionStorage.setItem(NAME, JSON.stringify(exchanges.map((of, i) => (i < bare ? withoutTexts(of) : of))));
        return;
      } catch {
        // the next try leaves out one more
      }
    }
  }

  return {
    exchanges: () => exchanges,
    add(question) {
      exchanges.push({ question, answer: null });
      return exchanges.length - 1;
    },
    answered(at, answer) {
      exchanges[at].answer = answer;
      save();
    },
    clear() {
      exchanges = [];
      sessionStorage.removeItem(NAME);
    },
    /** The messages that ask exchange `at`, after as many of the earlier ones as `skip` leaves. */
    messages(at, skip = 0) {
      const before = exchanges.slice(0, at).filter(({ answer }) => answer?.text && ANSWERED.includes(answer.state));
      const turns = before.slice(skip).flatMap(({ question, answer }) => [
        { role: "user", content: question },
        { role: "assistant", content: answer.text },
      ]);
      return { turns: [...turns, { role: "user", content: exchanges[at].question }], earlier: before.length };
    },
  };
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(NAME) ?? "[]").filter(({ answer }) => answer);
  } catch {
    return [];
  }
}

const withoutTexts = ({ question, answer }) => ({
  question,
  answer: answer && { ...answer, passages: answer.passages.map(({ text, ...passage }) => passage) },
});
