"""Which passage a sentence is attributed to, and which sentence of it is quoted."""

from __future__ import annotations

from kvstitch.service.gateway.answers.attributor import attribute
from kvstitch.service.gateway.answers.support import SupportScorer

TENT = (
    "The Corrie 3",
    "The Corrie 3 is a tent for three. It weighs 3.2 kilograms without pegs. Fourteen guy lines "
    "hold it in a gale.",
)
FILTER = (
    "The Clearwell filter",
    "The Clearwell filter cleans water. It weighs 440 grams with its hose. A candle cleans nine "
    "thousand litres.",
)
STOVE = ("The Ember 40", "The stove needs a flue of four metres. Its cast iron is from Haverling.")
PASSAGES = [TENT, FILTER, STOVE]
QUESTION = "How much does the Corrie 3 tent weigh?"


def test_each_sentence_goes_to_the_passage_that_says_it() -> None:
    answer = "The tent weighs 3.2 kilograms. The filter weighs 440 grams."
    found = attribute(answer, PASSAGES, QUESTION)
    assert [s.citations for s in found.sentences] == [[1], [2]]
    assert [answer[s.start : s.end] for s in found.sentences] == [
        "The tent weighs 3.2 kilograms.", "The filter weighs 440 grams.",
    ]  # fmt: skip
    quotes = {index: PASSAGES[index - 1][1][q.quote.start : q.quote.stop] for index, q in
              found.quotes.items()}  # fmt: skip
    assert quotes == {
        1: "It weighs 3.2 kilograms without pegs.",
        2: "It weighs 440 grams with its hose.",
    }
    assert all(0 < s.score <= 1 and s.by == "words" for s in found.sentences)


def test_what_no_passage_says_is_attributed_to_none() -> None:
    found = attribute("Elephants never forget their grandmothers.", PASSAGES, QUESTION)
    assert [s.citations for s in found.sentences] == [[]] and found.quotes == {}
    assert attribute("Anything.", [], QUESTION).sentences == []
    assert attribute("", PASSAGES, QUESTION).sentences == []
    assert attribute("?!", PASSAGES, QUESTION).sentences == []


def test_the_same_text_twice_is_cited_twice() -> None:
    found = attribute("It weighs 3.2 kilograms.", [TENT, FILTER, TENT], QUESTION)
    assert found.sentences[0].citations == [1, 3]


def test_the_words_that_the_prompt_has_begun_the_answer_with_count_for_nobody() -> None:
    begun = "According to the documents,"
    whole = attribute(f"{begun} 3.2 kilograms.", PASSAGES, QUESTION, begun=begun).sentences[0]
    alone = attribute("3.2 kilograms.", PASSAGES, QUESTION).sentences[0]
    assert whole.score == alone.score and whole.citations == alone.citations == [1]
    assert whole.start == 0


def test_marks_of_the_model_go_before_words_and_unknown_ones_are_told() -> None:
    answer = "It weighs 3.2 kilograms [2]. The flue is four metres [9]. It is a tent. [1]"
    found = attribute(answer, PASSAGES, QUESTION, marked=True)
    assert [(s.citations, s.by) for s in found.sentences] == [
        ([2], "marks"), ([3], "words"), ([1], "marks"),
    ]  # fmt: skip
    assert found.unknown_marks == [9]
    zero = attribute("It weighs 3.2 kilograms [0].", PASSAGES, QUESTION, marked=True)
    assert zero.unknown_marks == [0] and zero.sentences[0].citations == [1]
    # The score still says what the words say of the passage that the mark names.
    assert found.sentences[0].score < 0.5
    unmarked = attribute("It weighs 3.2 kilograms [2].", PASSAGES, QUESTION)
    assert unmarked.sentences[0].citations == [1]


def test_other_scripts() -> None:
    passages = [("", "大阪城は一五八三年に建てられた。"), ("", "東京は日本の首都である。")]
    found = attribute("日本の首都は東京である。", passages, "日本の首都は？")
    assert found.sentences[0].citations == [2]


def test_words_of_the_question_support_less_than_others() -> None:
    """Every answer repeats them, whatever it was read from."""
    sentence = "The tent is purple."
    asked = SupportScorer([TENT], "Which tent?").scores(sentence)[0].score
    unasked = SupportScorer([TENT], "Which colour?").scores(sentence)[0].score
    assert 0 < asked < unasked < 1
