"""The suites of real text: what stands in a prompt, that splits share nothing, that chunks lose
nothing. Encoded with the demo model's tokenizer; a hashing embedder retrieves."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from benchmarks.quality.chunks import chunked
from benchmarks.quality.prompt_file import of_file, write
from benchmarks.quality.suites import Choice, Suites
from benchmarks.quality.tasks import demo_prose, musique, natural_questions
from kvstitch_tune.prompts import Prompt
from service.settings import demo_model
from tests.fakes.models import HashingEmbedder


@pytest.fixture(scope="module")
def suites() -> Suites:
    return Suites(demo_model(), HashingEmbedder().embed)


def text_of(suites: Suites, prompt: Prompt) -> str:
    return suites.decode(list(chain(prompt.system, *prompt.documents, prompt.question)))


def retrieved(others: int, samples: int = 40, seed: int = 1) -> list[natural_questions.Retrieved]:
    asked = natural_questions.load("dev")
    embed = HashingEmbedder().embed
    return list(natural_questions.retrieve(asked, embed, others=others, samples=samples, seed=seed))


@pytest.mark.parametrize("others", [4, 9, 19])
def test_one_passage_answers_and_stands_anywhere(others: int) -> None:
    found = retrieved(others)
    for each in found:
        assert len(each.passages) == len(set(each.passages)) == others + 1
        assert each.passages[each.gold] == each.asked.passage
        holding = [
            p
            for p in each.passages
            if any(answer.lower() in f"{p.title} {p.text}".lower() for answer in each.asked.answers)
        ]
        assert set(holding) <= {each.asked.passage}
    assert len({each.gold for each in found}) > others // 2


def test_prompts_depend_on_the_seed_alone() -> None:
    assert retrieved(4, samples=5) == retrieved(4, samples=20)[:5]
    other = retrieved(4, samples=5, seed=2)
    assert [set(e.passages) for e in other] == [set(e.passages) for e in retrieved(4, samples=5)]
    assert other != retrieved(4, samples=5)


def test_splits_share_no_question() -> None:
    for of in (natural_questions.load, musique.load, demo_prose.load):
        dev, test = ({q.question for q in of(split)} for split in ("dev", "test"))
        assert dev and test and not dev & test


def test_a_prompt_holds_passages_and_question(suites: Suites) -> None:
    [plain] = suites.draw("nq", Choice(samples=1, others=4))
    [found] = retrieved(4, samples=1)
    text = text_of(suites, plain)
    assert found.asked.question in text
    assert [suites.decode(list(d)) for d in plain.documents] == [
        suites.render(p) for p in found.passages
    ]


def test_an_answer_prefix_ends_the_prompt(suites: Suites) -> None:
    [prompt] = suites.draw("nq", Choice(samples=1, answer_prefix="The answer is"))
    assert suites.decode(list(prompt.question)).endswith("The answer is")


def test_demo_prompts_hold_every_document_that_answers(suites: Suites) -> None:
    corpus = demo_prose.documents()
    drawn = suites.draw("demo", Choice(samples=30, others=2))
    for prompt, asked in zip(drawn, demo_prose.load("dev"), strict=False):
        documents = [suites.decode(list(ids)) for ids in prompt.documents]
        assert {suites.render(corpus[name]) for name in asked.documents} <= set(documents)
        assert len(documents) == 2 + len(asked.documents)


def test_chunks_of_several_passages_are_those_nearest_to_the_question(suites: Suites) -> None:
    """They are cut as the service cuts them; more samples than questions come in other orders."""
    count = len(musique.load("dev"))
    drawn = suites.draw("musique", Choice(samples=count + 1, others=3, chunk_tokens=128))
    first, again = drawn[0], drawn[count]
    assert len(first.documents) == 4 and max(map(len, first.documents)) <= 128
    assert set(first.documents) == set(again.documents) and first.documents != again.documents
    assert first.question == again.question and first.key != again.key
    [whole] = suites.draw("musique", Choice(samples=1))
    texts = [suites.decode(ids).strip() for ids in first.documents]
    assert all(text in text_of(suites, whole) for text in texts)


@pytest.mark.parametrize("limit", [128, 256, 512])
def test_chunks_lose_nothing_and_cut_only_what_is_too_long(limit: int) -> None:
    [*cut] = chunked([tuple(range(1000))], limit)
    assert list(chain(*cut)) == list(range(1000)) and max(map(len, cut)) <= limit
    short = [tuple(range(n)) for n in (limit // 2, limit // 4, limit // 2, 1)]
    assert chunked(short, limit) == (short[0] + short[1], short[2] + short[3])


def test_the_written_file_holds_the_same_prompts(suites: Suites, tmp_path: Path) -> None:
    drawn = suites.draw("musique", Choice(samples=2))
    write(tmp_path / "prompts.jsonl", drawn)
    assert of_file(demo_model(), tmp_path / "prompts.jsonl") == drawn
