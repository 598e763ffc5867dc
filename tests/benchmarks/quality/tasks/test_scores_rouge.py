"""ROUGE and the stemmer: values by hand, and as `rouge` 1.0.1, `rouge_score` 0.1.2 and NLTK 3.10.4
gave them."""

from __future__ import annotations

import pytest

from benchmarks.quality.scores import score
from benchmarks.quality.scores.porter import stem

NEEDLE = (
    "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park "
    "on a sunny day."
)


@pytest.mark.parametrize(
    ("text", "reference", "official"),
    [
        # Both sentences of the text together hold all 6 words, among 8 distinct: P = 6/8, R = 1.
        ("The cat sat. It was on the mat.", "The cat sat on the mat.", 0.8571428522448981),
        # Of a c d and a b d one: P = R = 3/4.
        ("a b c d", "a c b d", 0.749999995),
        # Behind the last full stop is a sentence of one empty word: P = 1/4, R = 1/3.
        ("It rained. It rained again. ", "Again it rained.", 0.2857142808163266),
        # Words count once: P = R = 1.
        ("b b b b", "b", 0.999999995),
        # b of the first sentence, a of the second; of "b a" it could have been a as well.
        ("b a. a", "a b", 0.999999995),
        # Of "a b" it is a, which the second sentence has as well: P = R = 1/2.
        ("a b. a", "b a", 0.499999995),
        ("", "a", 0.0),
        (".", "a", 0.0),
        ("a", "..", 0.0),
        ("no match", "at all", 0.0),
    ],
)
def test_rouge_l(text: str, reference: str, official: float) -> None:
    assert score("rouge_l", text, [reference]) == pytest.approx(official, abs=1e-12)


def test_rouge_l_of_a_sentence_too_long_for_the_package() -> None:
    """It recurses once per word."""
    text = " ".join(map(str, range(600)))
    assert score("rouge_l", text, [text]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "official"),
    [
        (NEEDLE, 1.0),
        # 12 of the needle's 21 words: P = 1, R = 12/21, F = 24/33. What a model can reach that
        # does not repeat the question.
        ("eat a sandwich and sit in Dolores Park on a sunny day.", 24 / 33),
        # eat sandwich sit in dolor park on sunni day, all of the needle: P = 1, R = 9/21
        ("Eating sandwiches, sitting in Dolores parks on sunny days!", 18 / 30),
        ("Nothing.", 0.0),
        ("", 0.0),
    ],
)
def test_rouge1(text: str, official: float) -> None:
    assert score("rouge1", text, [NEEDLE]) == pytest.approx(official)


def test_rouge1_stems_words_of_more_than_three_letters() -> None:
    assert score("rouge1", "days", ["day"]) == 1
    assert score("rouge1", "its", ["it"]) == 0


STEMS = """
    caresses:caress ponies:poni dies:die cats:cat ies:i eds:ed oats:oat
    feed:feed agreed:agre died:die spied:spi plastered:plaster bled:bled motoring:motor sing:sing
    conflated:conflat troubled:troubl sized:size hopping:hop falling:fall hissing:hiss filing:file
    failing:fail
    happy:happi sky:sky enjoy:enjoy spying:spi
    relational:relat conditional:condit rational:ration hesitancy:hesit digitizer:digit
    radically:radic differently:differ vietnamization:vietnam predication:predic
    callousness:callous sensibility:sensibl hopefully:hope archaeology:archaeolog geology:geolog
    triplicate:triplic formative:form electrical:electr goodness:good
    revival:reviv adjustment:adjust adoption:adopt edition:edit nation:nation communion:communion
    homologous:homolog
    probate:probat rate:rate cease:ceas controlling:control rolling:roll
    news:news dying:die innings:inning succeed:succeed
"""


@pytest.mark.parametrize("pair", STEMS.split())
def test_stems_as_nltk(pair: str) -> None:
    word, _, expected = pair.partition(":")
    assert stem(word) == expected
