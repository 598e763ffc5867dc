"""RULER's prompts letter by letter, for the smallest instances."""

from __future__ import annotations

import re

import pytest

from benchmarks.quality.ruler import Words, generate
from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack

OLD_RIVER = Words(("old",), ("river",))
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def first(task: str, length: int, words: Words | None = None) -> TextSample:
    def count(text: str) -> int:
        return len(text.split())

    haystack = Haystack("tiny", "It rained.")
    if words is None:
        return next(generate(task, count=count, length=length, samples=1, haystack=haystack))
    return next(
        generate(task, count=count, length=length, samples=1, words=words, haystack=haystack)
    )


def whole(sample: TextSample) -> str:
    return sample.instruction + sample.context + sample.question + sample.answer_prefix


def filled(pattern: str, text: str) -> dict[str, str]:
    """What stands at the <names> of a pattern that is otherwise literal."""
    regex = re.sub(r"<(\w+)>", r"(?P<\1>.+?)", re.escape(pattern))
    match = re.fullmatch(regex, text, re.DOTALL)
    assert match is not None, text
    return match.groupdict()


def test_single_number() -> None:
    sample = first("niah_single_1", 205, OLD_RIVER)
    (value,) = sample.references
    assert sample.instruction == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n"
    )
    needle = f"One of the special magic numbers for old-river is: {value}."
    assert sample.context == f"{needle}\n{NOISE}"
    assert sample.question == (
        "\nWhat is the special magic number for old-river mentioned in the provided text?"
    )
    assert sample.answer_prefix == (
        " The special magic number for old-river mentioned in the provided text is"
    )
    assert (sample.suite, sample.task, sample.chat, sample.stop) == (
        "ruler",
        "niah_single_1",
        True,
        (),
    )


def test_single_uuid_in_essays() -> None:
    sample = first("niah_single_3", 187, OLD_RIVER)
    (value,) = sample.references
    needle = f"One of the special magic uuids for old-river is: {value}."
    assert sample.context in (f"{needle} It", f"It {needle}")
    assert whole(sample).replace(sample.context, "<context>") == (
        "A special magic uuid is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the uuid afterwards.\n"
        "<context>\n"
        "What is the special magic uuid for old-river mentioned in the provided text?"
        " The special magic uuid for old-river mentioned in the provided text is"
    )


def test_several_values() -> None:
    sample = first("niah_multivalue", 230, OLD_RIVER)
    assert whole(sample).replace(sample.context, "<context>") == (
        "Some special magic numbers are hidden within the following text. Make sure to memorize "
        "it. I will quiz you about the numbers afterwards.\n"
        "<context>\n"
        "What are all the special magic numbers for old-river mentioned in the provided text?"
        " The special magic numbers for old-river mentioned in the provided text are"
    )


def test_several_queries() -> None:
    words = Words(("old",), ("river", "mill", "lake", "hill"))
    sample = first("niah_multiquery", 240, words)
    given = filled(
        "Some special magic numbers are hidden within the following text. Make sure to memorize "
        "it. I will quiz you about the numbers afterwards.\n"
        "<context>\n"
        "What are all the special magic numbers for <a>, <b>, <c>, and <d> mentioned in the "
        "provided text? The special magic numbers for <query> mentioned in the provided text are",
        whole(sample),
    )
    assert {given[name] for name in "abcd"} == {f"old-{noun}" for noun in words.nouns}
    assert given["query"] == "{a}, {b}, {c}, and {d}".format(**given)


def test_chain() -> None:
    sample = first("vt", 500)
    instruction = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    )
    assert sample.instruction == instruction
    names = filled("\nQuestion: Find all variables that are assigned the value <value> in the text "
                   "above.", sample.question)  # fmt: skip
    value = names["value"]
    assert sample.answer_prefix == (
        " Answer: According to the chain(s) of variable assignment in the text above, 5 variables "
        f"are assigned the value {value}, they are: "
    )
    # The smallest example: five lines of noise, one behind each statement.
    shown = filled(
        f"VAR <a> = <value>\n{NOISE}\nVAR <b> = VAR <a2> \n{NOISE}\nVAR <c> = VAR <b2> \n{NOISE}\n"
        f"VAR <d> = VAR <c2> \n{NOISE}\nVAR <e> = VAR <d2> \n{NOISE}\n"
        "Question: Find all variables that are assigned the value <value2> in the text above. "
        "Answer: According to the chain(s) of variable assignment in the text above, 5 variables "
        "are assigned the value <value3>, they are:  <names>\n\n" + instruction + "<text>",
        sample.context,
    )
    assert shown["names"] == "{a} {b} {c} {d} {e}".format(**shown)
    assert len(shown["names"]) == 19  # three letters each
    assert [shown[f"{name}2"] for name in "abcd"] == [shown[name] for name in "abcd"]
    assert shown["value2"] == shown["value3"] == shown["value"] != value
    assert set(shown["text"].split("\n")) >= {NOISE, f"VAR {sample.references[0]} = {value}"}


@pytest.mark.parametrize("length", [500, 4500])
def test_common_words(length: int) -> None:
    sample = first("cwe", length)
    instruction = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
    )
    shown = filled(
        instruction + "<example>\n"
        "Question: What are the 10 most common words in the above list? Answer: The top 10 words "
        "that appear most often in the list are: 1. <a> 2. <b> 3. <c> 4. <d> 5. <e> 6. <f> 7. <g> "
        "8. <h> 9. <i> 10. <j>\n" + instruction + "<list>\n"
        "Question: What are the 10 most common words in the above list? Answer: The top 10 words "
        "that appear most often in the list are:",
        whole(sample),
    )
    assert sample.instruction == instruction
    assert all(" " not in shown[name] for name in "abcdefghij")
    repeats = (3, 1) if length < 4096 else (10, 3)
    words = 20 if length < 4096 else 40
    assert len(shown["example"].split()) == 2 * (10 * repeats[0] + (words - 10) * repeats[1])


def test_frequent_words() -> None:
    sample = first("fwe", 400)
    shown = filled(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. <text>\n"
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text? Answer: According to the "
        "coded text above, the three most frequently appeared words are:",
        whole(sample),
    )
    assert shown["text"] == sample.context
    assert "\n" not in sample.context
