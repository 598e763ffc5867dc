"""The suites of real text: what stands in a prompt, that splits share nothing, that chunks lose
nothing. Encoded with the demo model's tokenizer; a hashing embedder retrieves."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.fidelity.prompts import of_file
from benchmarks.quality.real import prompts
from benchmarks.quality.real.chunks import chunked
from benchmarks.quality.real.outcomes import right
from benchmarks.quality.real.suites import Choice, Suites, wikipedia
from benchmarks.quality.tasks import demo_prose, musique, natural_questions
from service.settings import demo_model
from tests.fakes.models import HashingEmbedder
from tuning.prompts import Prompt


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


def test_a_prompt_holds_passages_and_question_and_turns_the_earlier_one(suites: Suites) -> None:
    [plain] = suites.draw("nq", Choice(samples=1, others=4))
    [turns] = suites.draw("turns", Choice(samples=1, others=4))
    [found] = retrieved(4, samples=1)
    text = text_of(suites, plain)
    assert found.asked.question in text
    assert [suites.decode(list(d)) for d in plain.documents] == [
        suites.render(p) for p in found.passages
    ]
    assert turns.documents == plain.documents
    other = next(p for i, p in enumerate(found.passages) if i != found.gold)
    before = next(q for q in natural_questions.load("dev") if q.passage == other)
    longer = text_of(suites, turns)
    assert longer.index(before.question) < longer.index(found.asked.question)
    assert before.answers[0] in suites.decode(list(turns.question))


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


def test_mixed_prompts_are_half_of_another_kind(suites: Suites) -> None:
    essays = set(suites.essays())
    for prompt in suites.draw("mixed", Choice(samples=8, others=7)):
        other = [ids in essays for ids in prompt.documents]
        assert len(other) == len(set(prompt.documents)) == 8 and sum(other) == 4
        held = text_of(suites, prompt).lower()
        assert any(answer.lower() in held for answer in prompt.answers)
    assert suites.draw("mixed", Choice(samples=2)) == suites.draw("mixed", Choice(samples=5))[:2]


@pytest.mark.parametrize("limit", [128, 256, 512])
def test_chunks_lose_nothing_and_cut_only_what_is_too_long(suites: Suites, limit: int) -> None:
    [whole] = suites.draw("ruler", Choice(samples=1, tasks=["niah_single_1"], chunk_tokens=4096))
    [cut] = suites.draw("ruler", Choice(samples=1, tasks=["niah_single_1"], chunk_tokens=limit))
    assert tuple(chain(*cut.documents)) == tuple(chain(*whole.documents))
    assert max(map(len, cut.documents)) <= limit
    short = [tuple(range(n)) for n in (limit // 2, limit // 4, limit // 2, 1)]
    assert chunked(short, limit) == (short[0] + short[1], short[2] + short[3])


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


def test_the_demo_language_has_seeds_of_its_own_for_each_part(suites: Suites) -> None:
    dev, test = (suites.draw("language", Choice(split, samples=2)) for split in ("dev", "test"))
    assert len(dev) == len(test) and not {p.key for p in dev} & {p.key for p in test}
    assert all(p.answers and len(p.documents) > 1 for p in test)


def test_synthetic_texts_do_not_repeat(suites: Suites) -> None:
    sentences = wikipedia("test").sentences(20_000)
    long = [s for s in sentences if len(s.split()) > 8]
    assert len(set(long)) > 0.99 * len(long)
    cells = suites.draw("needle", Choice())
    assert len({prompt.task for prompt in cells}) == len(cells) == 15
    assert all(right(text_of(suites, prompt), prompt) for prompt in cells)


def test_the_written_file_holds_the_same_prompts(tmp_path: Path) -> None:
    out = tmp_path / "ruler.jsonl"
    folder = demo_model()
    given = ["--suite", "ruler", "--tasks", "vt", "niah_single_1", "--samples", "2"]
    assert prompts.main(["--model", str(folder), *given, "--out", str(out)]) == 0
    read = of_file(folder, out)
    raw = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [p.task for p in read] == ["vt", "vt", "niah_single_1", "niah_single_1"]
    assert [list(p.question) for p in read] == [line["question"] for line in raw]
    assert [list(p.system) for p in read] == [line["system"] for line in raw]


def test_an_unknown_task_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--suite", "ruler", "--tasks", "nonsense", "--out", str(tmp_path / "x.jsonl")]
    assert prompts.main(["--model", str(demo_model()), *given]) == 2
    assert "nonsense" in capsys.readouterr().err
