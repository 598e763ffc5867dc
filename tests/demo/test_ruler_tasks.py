"""RULER's tasks: the answer follows from the context, and from nothing else in it."""

import random
import re
from collections import Counter

import pytest

from demo.language.tasks import TASKS, TaskSample, sample
from demo.language.vocabulary import build_tokenizer

TOKENIZER = build_tokenizer()
SEEDS = range(25)


def _needles(context: str) -> list[tuple[str, str]]:
    return re.findall(r"special magic numbers for (\w+) is: (\d+)\.", context)


def _answer(drawn: TaskSample) -> str:
    (answer,) = drawn.answers
    return answer


@pytest.mark.parametrize("task", ("niah", "niah_prose"))
def test_a_key_has_one_number(task: str) -> None:
    for seed in SEEDS:
        drawn = sample(task, random.Random(seed))
        key = re.search(r"for (\w+) mentioned", drawn.question)
        assert key is not None
        assert [number for name, number in _needles(drawn.context) if name == key[1]] == [
            _answer(drawn)
        ]


def test_all_numbers_of_a_key_in_order() -> None:
    for seed in SEEDS:
        drawn = sample("niah_multivalue", random.Random(seed))
        key = re.search(r"for (\w+) mentioned", drawn.question)
        assert key is not None
        found = [number for name, number in _needles(drawn.context) if name == key[1]]
        assert ", ".join(found) == _answer(drawn)
        assert len(found) == 3
        assert len({name for name, _ in _needles(drawn.context)}) == 3


def test_one_number_for_each_key_asked_for() -> None:
    for seed in SEEDS:
        drawn = sample("niah_multiquery", random.Random(seed))
        keys = re.search(r"for (.+) mentioned", drawn.question)
        assert keys is not None
        numbers = dict(_needles(drawn.context))
        assert len(numbers) == len(_needles(drawn.context)) == 6
        asked = re.split(r", and |, ", keys[1])
        assert ", ".join(numbers[key] for key in asked) == _answer(drawn)


@pytest.mark.parametrize("task", ("niah_multivalue", "niah_multiquery"))
def test_haystacks_are_noise_or_prose(task: str) -> None:
    contexts = [sample(task, random.Random(seed)).context for seed in SEEDS]
    noisy = ["The grass is green." in context for context in contexts]
    assert any(noisy)
    assert not all(noisy)
    for context in contexts:
        straw = re.sub(r"One of the special magic numbers for \w+ is: \d+\.", "", context)
        assert len(straw.split()) > 40


def test_numbers_of_a_story_begin_with_a_pair_of_digits_as_one_token() -> None:
    for task in ("niah", "niah_multivalue"):
        for number in _answer(sample(task, random.Random(1))).split(", "):
            first = TOKENIZER.encode(" " + number).ids[0]
            assert TOKENIZER.decode([first]) == f" {number[:2]}"


def test_all_variables_of_a_value() -> None:
    for seed in SEEDS:
        drawn = sample("vt", random.Random(seed))
        value = re.search(r"the value (\d+) in", drawn.question)
        assert value is not None
        held: dict[str, str] = {}
        for name, copied, year in re.findall(r"VAR (\w+) = (?:VAR (\w+)|(\d+))\.", drawn.context):
            assert name not in held
            held[name] = held[copied] if copied else year
        assert len(set(held.values())) >= 3
        same = [name for name, year in held.items() if year == value[1]]
        assert len(same) == 3
        assert ", ".join(same) == _answer(drawn)


def test_most_common_words_of_a_list() -> None:
    for seed in SEEDS:
        drawn = sample("cwe", random.Random(seed))
        items = re.findall(r"(\d+)\. (\w+)", drawn.context)
        assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
        counts = Counter(word for _, word in items)
        assert sorted(counts.values())[-4:] == [1, 4, 4, 4]
        common = [word for word, count in counts.items() if count == 4]
        assert ", ".join(common) == _answer(drawn)


def test_most_frequent_coded_words() -> None:
    for seed in SEEDS:
        drawn = sample("fwe", random.Random(seed))
        body = drawn.context.partition("\n")[2]
        counts = Counter(re.findall(r"\w+", body)).most_common(4)
        assert ", ".join(word for word, _ in counts[:3]) == _answer(drawn)
        assert len({count for _, count in counts}) == 4
        assert body.count("...") > counts[0][1]


def test_each_is_a_task() -> None:
    added = ("niah_multivalue", "niah_multiquery", "niah_prose", "vt", "cwe", "fwe")
    assert tuple(TASKS)[-6:] == added
