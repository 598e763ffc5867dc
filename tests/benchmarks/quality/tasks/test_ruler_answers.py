"""RULER's samples can be solved: small solvers that know only the text find the references."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchmarks.quality.ruler import Words, generate
from benchmarks.quality.ruler.niah import NOISE
from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack, built_in

SAMPLES = 12
NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
SMALL = Words(
    ("old", "new", "red"), ("river", "bridge", "mill", "lake"), ("run", "sit", "eat", "see")
)


def samples(task: str, length: int = 900, words: Words | None = None) -> list[TextSample]:
    def count(text: str) -> int:
        return len(text.split())

    if words is None:
        return list(generate(task, count=count, length=length, samples=SAMPLES))
    return list(generate(task, count=count, length=length, samples=SAMPLES, words=words))


@pytest.mark.parametrize(
    ("task", "key", "value", "keys", "values", "queries"),
    [
        ("niah_single_1", r"[a-z]+-[a-z]+", r"\d{7}", 1, 1, 1),
        ("niah_single_2", r"[a-z]+-[a-z]+", r"\d{7}", 1, 1, 1),
        ("niah_single_3", r"[a-z]+-[a-z]+", UUID, 1, 1, 1),
        ("niah_multikey_1", r"[a-z]+-[a-z]+", r"\d{7}", 4, 1, 1),
        ("niah_multikey_2", r"[a-z]+-[a-z]+", r"\d{7}", None, 1, 1),
        ("niah_multikey_3", UUID, UUID, None, 1, 1),
        ("niah_multivalue", r"[a-z]+-[a-z]+", r"\d{7}", 1, 4, 1),
        ("niah_multiquery", r"[a-z]+-[a-z]+", r"\d{7}", 4, 1, 4),
    ],
)
def test_needles_are_found_and_nowhere_else(
    task: str, key: str, value: str, keys: int | None, values: int, queries: int
) -> None:
    for sample in samples(task):
        found = [(match[2], match[3]) for match in NEEDLE.finditer(sample.context)]
        asked = re.search("for (.+) mentioned", sample.question)
        assert asked is not None
        wanted = re.split(", and |, ", asked[1])
        assert len(wanted) == len(set(wanted)) == queries
        of_key = {name: [v for k, v in found if k == name] for name in wanted}
        # Answers in the order of the queries; several values of one key in any order.
        assert sorted(sample.references) == sorted(v for name in wanted for v in of_key[name])
        if values == 1:
            assert sample.references == tuple(of_key[name][0] for name in wanted)
        assert all(sample.context.count(reference) == 1 for reference in sample.references)
        different = {name for name, _ in found}
        expected = keys if keys is not None else int(sample.details["size"]) + 1
        assert len(different) == expected
        assert len({v for _, v in found}) == len(found) == expected * values
        assert all(re.fullmatch(key, k) and re.fullmatch(value, v) for k, v in found)


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multikey_1", "niah_multivalue"])
def test_needles_lie_between_sentences_at_forty_depths(task: str) -> None:
    depths = [round(100 * step / 39) for step in range(40)]
    starts = set()
    for sample in samples(task):
        pieces = NEEDLE.split(sample.context)[::4]  # between needles
        size = sample.details["size"]
        assert isinstance(size, int)
        assert " ".join(" ".join(pieces).split()) == " ".join(built_in().sentences(size))
        sentences = built_in().sentences(size)
        ends = {len(" ".join(sentences[:n]).split()): n for n in range(len(sentences) + 1)}
        passed = 0
        for piece in pieces[:-1]:
            passed += len(piece.split())
            assert ends[passed] in {int(len(sentences) * depth / 100) for depth in depths}
        starts.add(len(pieces[0].split()))
    assert len(starts) > SAMPLES // 2


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2"])
def test_lines_are_noise_or_needles(task: str) -> None:
    places = set()
    for sample in samples(task):
        lines = sample.context.split("\n")
        assert len(lines) == sample.details["size"] + 1  # type: ignore[operator]
        if task == "niah_single_1":
            assert sum(line == NOISE for line in lines) == len(lines) - 1
        assert sum(NEEDLE.fullmatch(line) is not None for line in lines) >= 1
        places.add([sample.references[0] in line for line in lines].index(True))
    assert len(places) > SAMPLES // 2


def follow(text: str, value: str) -> list[str]:
    """The names that a value reaches, by the statements alone, in whatever order they come."""
    statements = re.findall(r"^VAR ([A-Z]+) = (?:VAR ([A-Z]+) |(\d+))$", text, re.MULTILINE)
    reached = [name for name, _, number in statements if number == value]
    for known in reached:
        reached += [name for name, source, _ in statements if source == known]
    return reached


def test_chains_are_followed_in_the_text_and_in_its_example() -> None:
    for sample in samples("vt"):
        shown, text = sample.context.split(sample.instruction)
        value = sample.question.split("assigned the value ")[1].split()[0]
        assert follow(text, value) == list(sample.references)
        assert text.replace("\n", " ").split(NOISE)  # noise around it
        assert set(text.split("\n")) - {NOISE} == {f"VAR {sample.references[0]} = {value}"} | {
            f"VAR {b} = VAR {a} "
            for a, b in zip(sample.references, sample.references[1:], strict=False)
        }
        assert not follow(shown, value)
        example = shown.split("assigned the value ")[1].split()[0]
        assert follow(shown, example) == shown.split("they are:  ")[1].split()
        assert all(len(name) == 5 and name.isupper() for name in sample.references)
        assert len(set(sample.references)) == 5


@pytest.mark.parametrize(("length", "common", "other"), [(900, 6, 1), (4500, 30, 3)])
def test_common_words_are_counted(length: int, common: int, other: int) -> None:
    for sample in samples("cwe", length):
        shown, text = sample.context.split(sample.instruction)
        listed = re.findall(r"(\d+)\. (\S+)", text)
        assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
        counts = Counter(word for _, word in listed)
        assert set(counts.values()) == {common, other}
        assert {word for word, n in counts.items() if n == common} == set(sample.references)
        assert len(counts) == sample.details["size"]
        assert len(sample.references) == 10
        given, answer = shown.split("\nQuestion:")
        example = Counter(re.findall(r"\d+\. (\S+)", given))
        top = {word for word, n in example.items() if n == max(example.values())}
        assert top == set(re.findall(r"\d+\. (\S+)", answer))
        assert len(top) == 10


def test_common_words_go_on_in_pairs_where_words_run_out() -> None:
    words = Words(tuple("abcdefgh"), tuple("ijklmnop"), SMALL.verbs)
    for sample in samples("cwe", 470, words):
        counts = Counter(re.findall(r"\d+\. (\S+)", sample.context.split(sample.instruction)[1]))
        pairs = [word for word in counts if "-" in word]
        assert pairs
        assert {word for word, n in counts.items() if n == 6} == set(sample.references)
        assert not {part for pair in pairs for part in pair.split("-")} & set(sample.references)


@pytest.mark.parametrize("length", [200, 900, 3000])
def test_frequent_codes_are_counted(length: int) -> None:
    for sample in samples("fwe", length):
        counts = Counter(sample.context.split())
        assert counts.most_common(1)[0][0] == "..."
        codes = [code for code, _ in counts.most_common()[1:5]]
        assert tuple(codes[:3]) == sample.references
        assert counts[codes[2]] > counts[codes[3]] > 0
        assert all(re.fullmatch("[a-z]{6}", code) for code in codes)
        assert len(counts) <= max(5, (length - 50) // 50)


def test_few_words_end_a_haystack_of_needles() -> None:
    """Twelve pairs make twelve needles and no endless search for a thirteenth."""
    for sample in samples("niah_multikey_2", words=SMALL):
        keys = [match[2] for match in NEEDLE.finditer(sample.context)]
        assert len(keys) == len(set(keys)) == 12


def test_essays_are_those_given() -> None:
    haystack = Haystack("mine", "It rained all day. We stayed in. Nobody came.")
    made = generate(
        "niah_single_2",
        count=lambda text: len(text.split()),
        length=300,
        samples=1,
        haystack=haystack,
    )
    sample = next(made)
    assert sample.details["haystack"] == "mine"
    assert set(NEEDLE.sub("", sample.context).split()) == set(haystack.text.split())
