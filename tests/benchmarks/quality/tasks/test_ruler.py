"""RULER's sizes and determinism: what holds for every task, whatever is in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.quality.ruler import ENGLISH, Words, generate, tasks
from benchmarks.quality.ruler.draft import Draft, Setting, fitting
from benchmarks.quality.ruler.niah import NOISE
from benchmarks.quality.ruler.suite import TASKS, drafts
from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import built_in
from service.errors import InvalidRequest

Count = Callable[[str], int]
DEMO = Tokenizer.from_file("service/demo_model/tokenizer.json")


def in_words(text: str) -> int:
    return len(text.split())


def in_tokens(text: str) -> int:
    return len(DEMO.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve articles of six paragraphs, and twelve questions with ten paragraphs of their own."""
    folder = tmp_path_factory.mktemp("qa")
    text = built_in().text.split()

    def paragraph(n: int) -> str:
        return f"Paragraph {n}. " + " ".join(text[40 * n : 40 * n + 20 + n % 17])

    articles = [
        {
            "paragraphs": [
                {
                    "context": paragraph(6 * a + p),
                    "qas": [
                        {
                            "question": f"Which is paragraph {6 * a + p}?",
                            "answers": [{"text": f"Paragraph {6 * a + p}"}],
                            "is_impossible": False,
                        }
                    ],
                }
                for p in range(6)
            ]
        }
        for a in range(12)
    ]
    (folder / "dev-v2.0.json").write_text(json.dumps({"data": articles}))
    rows = [
        {
            "question": f"Question {n}?",
            "answer": f"Answer {n}",
            "context": [[f"Title {n} {p}", [paragraph((7 * n + p) % 72)]] for p in range(10)],
            "supporting_facts": [[f"Title {n} 3", 0], [f"Title {n} 8", 0], [f"Title {n} 8", 1]],
        }
        for n in range(12)
    ]
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(rows))
    return folder


def prompt_tokens(sample: TextSample, count: Count) -> int:
    return (
        count(sample.instruction)
        + count(sample.context)
        + count(sample.question + sample.answer_prefix)
    )


@pytest.mark.parametrize("task", tasks())
@pytest.mark.parametrize(
    ("count", "length"), [(in_words, 1100), (in_words, 4100), (in_tokens, 1450), (in_tokens, 1900)]
)
def test_a_prompt_is_as_large_as_it_may_be(
    task: str, count: Count, length: int, data: Path
) -> None:
    samples = list(generate(task, count=count, length=length, samples=2, data=data))
    answer = TASKS[task].answer_tokens
    setting = Setting(count, length, answer, ENGLISH, built_in(), data)
    assert len(samples) == 2
    for sample, draft in zip(samples, drafts(task, setting, samples=2, seed=42), strict=True):
        tokens, size = prompt_tokens(sample, count), sample.details["size"]
        assert isinstance(size, int)
        assert sample.answer_tokens == answer
        assert sample.details["tokens"] == tokens <= length - answer
        assert draft.context(size) == sample.context
        if size < draft.most:
            larger = draft.context(size + 1)
            fixed = count(draft.instruction) + count(draft.question + draft.answer_prefix)
            assert len(larger) > len(sample.context)
            assert fixed + count(larger) > length - answer
        else:
            assert task.startswith("qa")  # all documents there are: 72 and 120


def test_the_size_is_exact_whatever_the_budget() -> None:
    """Five words around it, two words a unit, at least three and at most forty units."""
    draft = Draft("To be", lambda n: "or not " * n, "to", " be that", (), smallest=3, most=40)
    for budget in range(11, 100):
        assert fitting(draft, in_words, budget) == min(40, (budget - 5) // 2)
    with pytest.raises(InvalidRequest, match="the smallest prompt has 11 tokens, and 10 are left"):
        fitting(draft, in_words, 10)


@pytest.mark.parametrize("task", tasks())
def test_samples_depend_on_seed_task_and_number_alone(task: str, data: Path) -> None:
    def some(samples: int, length: int = 700, seed: int = 42) -> list[TextSample]:
        made = generate(task, count=in_words, length=length, samples=samples, seed=seed, data=data)
        return list(made)

    five = some(5)
    assert some(5) == five
    assert some(2) == five[:2]
    assert [sample.number for sample in five] == [0, 1, 2, 3, 4]
    assert all(one.context != other.context for one, other in pairwise(five))
    assert [s.context for s in some(5, seed=43)] != [s.context for s in five]
    longer = some(5, length=1000)
    assert [s.references for s in longer] == [s.references for s in five]
    assert all(b.details["tokens"] > a.details["tokens"] for a, b in zip(five, longer, strict=True))  # type: ignore[operator]


def test_the_third_code_is_ahead_of_the_fourth_in_every_size() -> None:
    setting = Setting(in_words, 1000, 50, ENGLISH, built_in(), None)
    (draft,) = drafts("fwe", setting, samples=1, seed=42)
    for size in range(draft.smallest, 600):
        counts = Counter(draft.context(size).split())
        fifth = max(n for code, n in counts.items() if code not in ("...", *draft.references))
        assert counts[draft.references[-1]] > fifth


@pytest.mark.parametrize(("length", "limit"), [(8000, 500), (2400, 500), (1024, 500)])
def test_the_example_of_a_chain_is_small(length: int, limit: int) -> None:
    (sample,) = generate("vt", count=in_words, length=length, samples=1)
    example = sample.instruction + sample.context.split(sample.instruction)[0].strip()
    tokens = in_words(example) - 5  # the answer
    assert tokens <= limit < tokens + in_words(NOISE)


def test_thirteen_tasks_and_how_they_are_judged() -> None:
    assert len(tasks()) == 13
    judged = {name: (task.answer_tokens, task.metric) for name, task in TASKS.items()}
    others = {name: value for name, value in judged.items() if not name.startswith("niah")}
    assert others == {
        "vt": (30, "string_match_all"),
        "cwe": (120, "string_match_all"),
        "fwe": (50, "string_match_all"),
        "qa_1": (32, "string_match_part"),
        "qa_2": (32, "string_match_part"),
    }
    niah = {value for name, value in judged.items() if name.startswith("niah")}
    assert niah == {(128, "string_match_all")}


def test_english_is_long_enough_and_plain() -> None:
    assert len(set(ENGLISH.adjectives)) >= 150
    assert len(set(ENGLISH.nouns)) >= 700
    listed = [*ENGLISH.adjectives, *ENGLISH.nouns, *ENGLISH.verbs]
    assert len(listed) == len(ENGLISH.every)  # no word twice
    assert all(word.isascii() and word.isalpha() and word.islower() for word in listed)


@pytest.mark.parametrize("task", [task for task in tasks() if task != "qa_2"])
def test_a_length_without_room_is_refused(task: str, data: Path) -> None:
    with pytest.raises(InvalidRequest, match="ask for a greater length") as caught:
        list(generate(task, count=in_words, length=60, samples=1, data=data))
    assert caught.value.field == "length"


def test_an_unknown_task_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match="niah_single_1") as caught:
        generate("niah", count=in_words, length=1000, samples=1)
    assert caught.value.field == "task"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("niah_single_1", Words((), ("river",))),
        ("niah_multiquery", Words(("old",), ("river", "bridge", "mill"))),
        ("niah_multikey_2", Words(("old",), ("river",))),
        ("cwe", Words(("old",), ("river",), ("run",))),
    ],
)
def test_too_few_words_are_refused(task: str, words: Words) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generate(task, count=in_words, length=1000, samples=1, words=words)
    assert caught.value.field == "words"
