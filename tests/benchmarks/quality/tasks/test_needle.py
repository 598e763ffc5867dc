"""The needle's place, the length of its haystack, and where the text comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack, built_in
from benchmarks.quality.tasks.needle import ANSWER_TOKENS, DEPTHS, LENGTHS, Needle, generate, tasks
from service.errors import InvalidRequest

SANDWICH = (
    "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny "
    "day."
)
DEMO = Tokenizer.from_file("service/demo_model/tokenizer.json")


def in_words(text: str) -> int:
    return len(text.split())


def in_tokens(text: str) -> int:
    return len(DEMO.encode(text, add_special_tokens=False).ids)


def one(length: int, depth: int, haystack: Haystack | None = None) -> TextSample:
    made = generate(count=in_words, lengths=[length], depths=[depth], haystack=haystack)
    return next(made)


def test_the_prompt_letter_by_letter() -> None:
    haystack = Haystack("tiny", "One two.\n\nThree four. Five six seven eight.")
    sample = one(229, 50, haystack)
    assert sample.instruction + sample.context + sample.question == (
        "This is a very long story book: <book> One two.\n\nThree four.\n"
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a "
        "sunny day.\n Five six seven eight. </book>.\n Based on the content of the book, "
        "Question: The best thing to do in San Francisco is: \nAnswer:"
    )
    assert sample == TextSample(
        suite="needle",
        task="needle",
        number=0,
        instruction=sample.instruction,
        context=sample.context,
        question=sample.question,
        references=(SANDWICH,),
        metric="rouge1",
        answer_tokens=30,
        stop=("\n",),
        chat=False,
        details={"depth": 50, "length": 229, "haystack": "tiny"},
    )


@pytest.mark.parametrize("count", [in_words, in_tokens])
def test_the_text_fills_its_length(count: Callable[[str], int]) -> None:
    lengths = (300, 801, 5000)  # the last repeats the text
    made = list(generate(count=count, lengths=lengths, depths=(0, 30, 100)))
    assert len(made) == 9
    for sample in made:
        length = sample.details["length"]
        assert isinstance(length, int)
        before, after = sample.context.split(f"\n{SANDWICH}\n")
        text = before + after
        room = length - 200 - count(f"\n{SANDWICH}\n")
        words = len(text.split())
        assert text == built_in().prefix(words)
        assert count(text) <= room < count(built_in().prefix(words + 1))
        prompt = count(sample.instruction) + count(sample.context) + count(sample.question)
        assert prompt + ANSWER_TOKENS <= length


@pytest.mark.parametrize("count", [in_words, in_tokens])
def test_the_needle_follows_the_last_sentence_before_its_depth(
    count: Callable[[str], int],
) -> None:
    for sample in generate(count=count, lengths=(1500,)):
        depth = sample.details["depth"]
        assert isinstance(depth, int)
        before, after = sample.context.split(f"\n{SANDWICH}\n")
        text = before + after
        if depth == 100:
            assert after == ""
            continue
        limit = count(text) * depth / 100
        sentences = [i + 1 for i, letter in enumerate(text) if text[i : i + 2].strip() == "."]
        within = [end for end in sentences if count(text[:end]) <= limit]
        assert len(before) == (within[-1] if within else 0)
        assert sample.context.count(SANDWICH) == 1
    assert one(400, 0).context.startswith(f"\n{SANDWICH}\n")
    assert one(400, 1).context.startswith(f"\n{SANDWICH}\n")  # no sentence ends that early


def test_the_grid() -> None:
    assert tasks() == ("needle",)
    assert (LENGTHS[0], LENGTHS[-1], len(LENGTHS)) == (1000, 8000, 71)
    assert DEPTHS == (0, 11, 22, 33, 44, 56, 67, 78, 89, 100)
    made = list(generate(count=in_words, lengths=(300, 400), depths=(0, 50)))
    cells = [(s.details["length"], s.details["depth"]) for s in made]
    assert cells == [(300, 0), (300, 50), (400, 0), (400, 50)]
    assert [sample.number for sample in made] == [0, 1, 2, 3]
    assert made == list(generate(count=in_words, lengths=(300, 400), depths=(0, 50)))


def test_a_small_model_has_its_own_needle() -> None:
    needle = Needle("Mara keeps a goat.", "Mara keeps")
    (sample,) = generate(
        count=in_words, lengths=[60], depths=[100], needle=needle, haystack=built_in(), reserved=30
    )
    assert sample.context.endswith("\nMara keeps a goat.\n")
    assert in_words(sample.context) == 30
    assert sample.question.endswith("Question: Mara keeps\nAnswer:")
    assert sample.references == ("Mara keeps a goat.",)


@pytest.mark.parametrize(
    ("lengths", "depths", "field"), [([5000, 221], [0], "lengths"), ([500], [0, 101], "depths")]
)
def test_what_cannot_be_is_refused(lengths: list[int], depths: list[int], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generate(count=in_words, lengths=lengths, depths=depths)
    assert caught.value.field == field


def test_a_haystack_goes_on_and_on() -> None:
    haystack = Haystack("tiny", 'So it is.\n"Is it?" Mr. Hill said no. J. Hill\tsaid yes! Well')
    sentences = ["So it is.", '"Is it?"', "Mr. Hill said no.", "J. Hill said yes!", "Well"]
    assert haystack.sentences(14) == sentences
    assert haystack.sentences(4) == ["So it is.", '"Is']
    assert haystack.sentences(0) == []
    assert haystack.sentences(18) == [*sentences, "So it is.", '"Is']
    assert haystack.prefix(5) == 'So it is.\n"Is it?"'
    assert haystack.prefix(15) == haystack.text + "\nSo"
    assert haystack.prefix(14) == haystack.text
    assert haystack.prefix(0) == ""


def test_haystacks_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("Second.\n")
    (tmp_path / "a.txt").write_text("First.\n\n")
    (tmp_path / "c.md").write_text("Not an essay.")
    assert Haystack.read(tmp_path) == Haystack(tmp_path.name, "First.\nSecond.")
    rows = [{"passages": ["One.", "Two."]}, {"passages": ["Two.", "Three."]}]
    passages = tmp_path / "passages.jsonl"
    passages.write_text("\n".join(map(json.dumps, rows)))
    assert Haystack.read(passages) == Haystack("passages.jsonl", "One.\nTwo.\nThree.")


def test_a_haystack_without_text_is_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty", tmp_path / "rows.jsonl"
    empty.mkdir()
    other.write_text('{"question": "Why?"}')
    for path in (empty, other, tmp_path / "missing"):
        with pytest.raises(InvalidRequest) as caught:
            Haystack.read(path)
        assert caught.value.field == "haystack"


def test_the_built_in_text_is_long_and_plain() -> None:
    text = built_in().text
    assert in_words(text) > 3000
    assert text.isascii()
    assert "magic" not in text
    assert not any(letter.isdigit() for letter in text)
    sentences = built_in().sentences(in_words(text))
    assert len(sentences) > 150
    assert len(set(sentences)) == len(sentences)
