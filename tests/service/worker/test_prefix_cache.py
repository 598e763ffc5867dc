"""Answered prompts are kept, and continued by requests that begin with them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.prefix_cache import MAX_PROMPTS, holds
from tests.service.worker.engines import A3, PIE, VANILLA, Rig, rig
from tests.service.worker.tiny import Tiny

SCOUT = Method("question_scout", {"ratio": 0.3})


def words(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 95) for _ in range(count)]


DOCUMENTS = [ChunkTokens(n, words(n, 30)) for n in (1, 2, 3)]
OTHER = ChunkTokens(4, words(14, 30))
ASKED = words(5, 8)


@pytest.fixture
def kept(model: Tiny) -> Iterator[Rig]:
    """An engine that keeps prompts, with its documents precomputed."""
    with rig(model, prefix_cache=True, pool_tokens=1000) as running:
        running.precompute([*DOCUMENTS, OTHER])
        yield running


@pytest.fixture
def fresh(model: Tiny) -> Iterator[Rig]:
    """One that keeps none."""
    with rig(model, pool_tokens=1000) as running:
        running.precompute([*DOCUMENTS, OTHER])
        yield running


def next_turn(tokens: Sequence[int]) -> list[int]:
    """Q of a conversation's second turn, after an answer of these tokens."""
    return [*ASKED, *tokens, *words(6, 7)]


def begin(running: Rig, name: str) -> None:
    """Steps until a request has its first token."""
    while not running.tokens(name):
        assert not running.engine.scheduler.idle
        running.events.extend(running.engine.step())


def computed(report: Report) -> int:
    return report.prompt_tokens - report.cached_tokens


@pytest.mark.parametrize("method", [VANILLA, PIE], ids=lambda m: m.name)
def test_a_prompt_can_be_prepared_without_an_answer(kept: Rig, fresh: Rig, method: Method) -> None:
    nothing, prepared = kept.answer(method, DOCUMENTS, question=ASKED, max_tokens=0)
    assert nothing == [] and prepared.completion_tokens == 0
    assert kept.done("r1").finish_reason == "length"
    answer, report = kept.answer(method, DOCUMENTS, question=ASKED)
    assert report.reused_tokens == report.prompt_tokens == prepared.prompt_tokens
    assert answer == fresh.answer(method, DOCUMENTS, question=ASKED)[0]


@pytest.mark.parametrize("method", [VANILLA, PIE, A3, SCOUT], ids=lambda m: m.name)
def test_the_same_prompt_again_computes_nothing(kept: Rig, method: Method) -> None:
    first, before = kept.answer(method, DOCUMENTS, question=ASKED)
    again, report = kept.answer(method, DOCUMENTS, question=ASKED)
    assert again == first and before.reused_tokens == 0
    assert report.reused_tokens == report.cached_tokens == report.prompt_tokens
    assert report.flops == 0 and report.recomputed_tokens == 0
    assert {d.tier for d in [report.system, *report.documents]} == {"pool"}
    assert [d.reused for d in report.documents] == [30, 30, 30]
    # As long an answer as is asked for, from the same KV.
    longer, _ = kept.answer(method, DOCUMENTS, question=ASKED, max_tokens=9)
    assert longer[:6] == first and len(longer) == 9


@pytest.mark.parametrize("method", [VANILLA, SCOUT], ids=lambda m: m.name)
def test_the_next_turn_computes_what_is_new(kept: Rig, fresh: Rig, method: Method) -> None:
    first, _ = kept.answer(method, DOCUMENTS, question=ASKED)
    question = next_turn(first)
    tokens, report = kept.answer(method, DOCUMENTS, question=question)
    # The last token of an answer was never fed to the model, so its KV is new, too.
    assert computed(report) == report.recomputed_tokens == 7 + 1
    assert report.reused_tokens == report.prompt_tokens - 8
    if method is VANILLA:
        assert tokens == fresh.answer(VANILLA, DOCUMENTS, question=question)[0]
    # And so does the turn after it.
    third, report = kept.answer(method, DOCUMENTS, question=[*question, *tokens, 5, 6, 7])
    assert computed(report) == 3 + 1
    assert len(third) == 6


def test_full_prefill_reuses_as_much_as_is_the_same(kept: Rig, fresh: Rig) -> None:
    kept.answer(VANILLA, DOCUMENTS, question=ASKED)
    documents = [*DOCUMENTS[:2], OTHER]
    tokens, report = kept.answer(VANILLA, documents, question=words(7, 8))
    assert report.reused_tokens == report.system.tokens + 60
    assert [d.rows_recomputed for d in report.documents] == [0, 0, 30]
    assert [d.tier for d in report.documents] == ["pool", "pool", "cold"]
    assert tokens == fresh.answer(VANILLA, documents, question=words(7, 8))[0]
    # In the middle of a document, too.
    half = ChunkTokens(9, [*DOCUMENTS[1].ids[:15], *words(8, 15)])
    tokens, report = kept.answer(VANILLA, [DOCUMENTS[0], half], question=ASKED)
    assert [d.reused for d in report.documents] == [30, 15]
    assert [d.rows_recomputed for d in report.documents] == [0, 15]
    assert tokens == fresh.answer(VANILLA, [DOCUMENTS[0], half], question=ASKED)[0]


def test_a_prompt_without_documents_is_continued_by_any_method(kept: Rig, fresh: Rig) -> None:
    question = words(11, 40)
    first, _ = kept.answer(SCOUT, [], question=question)
    tokens, report = kept.answer(PIE, [], question=[*question, *first, 4, 5])
    assert computed(report) == 3
    assert tokens == fresh.answer(VANILLA, [], question=[*question, *first, 4, 5])[0]


def test_repaired_rows_serve_no_other_question_method_or_tenant(kept: Rig, fresh: Rig) -> None:
    kept.answer(SCOUT, DOCUMENTS, question=ASKED)
    for asked in (
        {"fusion": SCOUT, "question": words(7, 8)},
        {"fusion": Method("question_scout", {"ratio": 0.2}), "question": ASKED},
        {"fusion": PIE, "question": ASKED},
        {"fusion": VANILLA, "question": ASKED},
        {"fusion": SCOUT, "question": ASKED, "tenant": "other"},
        {"fusion": SCOUT, "question": ASKED, "prefix_mode": "system"},
        {"fusion": SCOUT, "question": ASKED, "cold": "as_stored"},
        {"fusion": SCOUT, "question": ASKED, "prefix_cache": False},
        {"fusion": SCOUT, "question": ASKED, "token_fates": True},
        {"fusion": SCOUT, "question": ASKED, "eviction": Method("snapkv", {"budget": 40})},
    ):
        tokens, report = kept.answer(documents=DOCUMENTS, **asked)
        assert report.reused_tokens == 0, asked
        if asked.get("tenant") is None and "prefix_mode" not in asked:
            asked.pop("prefix_cache", None)
            assert tokens == fresh.answer(documents=DOCUMENTS, **asked)[0]


def test_exact_rows_are_not_taken_by_a_fused_request(kept: Rig) -> None:
    """It would answer as full prefill does, once, and differently the next time."""
    kept.answer(VANILLA, DOCUMENTS, question=ASKED)
    assert kept.answer(PIE, DOCUMENTS, question=ASKED)[1].reused_tokens == 0


def test_what_says_so_leaves_nothing(kept: Rig) -> None:
    kept.answer(VANILLA, DOCUMENTS, question=ASKED, prefix_cache=False)
    kept.answer(PIE, DOCUMENTS, question=ASKED, eviction=Method("snapkv", {"budget": 40}))
    assert kept.engine.prefix_cache.share == 0 and kept.engine.pool.free_share == 1


def test_prompts_make_room_for_others(model: Tiny) -> None:
    """The least recently used one first; nothing waits for a cached prompt, and nothing is lost."""
    with rig(model, prefix_cache=True, pool_tokens=380) as running:
        running.precompute([*DOCUMENTS, OTHER])
        questions = [words(20 + n, 8) for n in range(6)]
        answers = [running.answer(PIE, DOCUMENTS, question=q)[0] for q in questions]
        assert running.engine.pool_free_share == 1 and running.engine.prefix_cache.share > 0.5
        assert running.answer(PIE, DOCUMENTS, question=questions[-1])[1].reused_tokens > 0
        tokens, report = running.answer(PIE, DOCUMENTS, question=questions[0])
        assert report.reused_tokens == 0 and tokens == answers[0]


def test_a_prompt_that_is_lost_before_its_request_starts_is_computed(model: Tiny) -> None:
    with rig(model, prefix_cache=True, pool_tokens=300, max_running=1) as running:
        running.precompute([*DOCUMENTS, OTHER])
        expected, _ = running.answer(SCOUT, DOCUMENTS, question=ASKED)
        big = running.submit(VANILLA, [*DOCUMENTS, OTHER], question=words(30, 60), max_tokens=90)
        waits = running.submit(SCOUT, DOCUMENTS, question=ASKED)
        running.run()
        assert running.done(big).report.reused_tokens == 0
        report = running.done(waits).report
        assert running.tokens(waits) == expected and report.reused_tokens == 0
        assert {d.tier for d in report.documents} == {"memory"}


def test_several_requests_continue_one_prompt_together(kept: Rig, fresh: Rig) -> None:
    first, _ = kept.answer(VANILLA, DOCUMENTS, question=ASKED)
    questions = [[*ASKED, *first, *words(40 + n, 4)] for n in range(4)]
    names = [kept.submit(VANILLA, DOCUMENTS, question=q) for q in questions]
    kept.run()
    for name, question in zip(names, questions, strict=True):
        assert kept.done(name).report.reused_tokens > 90
        assert kept.tokens(name) == fresh.answer(VANILLA, DOCUMENTS, question=question)[0]


def test_an_aborted_answer_is_kept_as_far_as_it_came(kept: Rig) -> None:
    name = kept.submit(VANILLA, DOCUMENTS, question=ASKED, max_tokens=50)
    begin(kept, name)
    kept.engine.abort(name, "cancelled")
    kept.run()
    tokens = kept.tokens(name)
    again, report = kept.answer(VANILLA, DOCUMENTS, question=ASKED, max_tokens=50)
    assert report.reused_tokens == report.prompt_tokens and again[: len(tokens)] == tokens


def test_deleted_text_is_not_kept(kept: Rig) -> None:
    """Neither of prompts that were answered nor of those that are being answered."""
    kept.answer(SCOUT, DOCUMENTS, question=ASKED)
    kept.answer(VANILLA, [OTHER], question=ASKED)
    running = kept.submit(VANILLA, DOCUMENTS, question=words(7, 8), max_tokens=30)
    kept.events.extend(kept.engine.step())
    assert not kept.engine.scheduler.idle
    kept.engine.forget([], [tuple(DOCUMENTS[1].ids)])
    kept.run()
    assert kept.done(running).report.completion_tokens == len(kept.tokens(running))
    assert kept.answer(VANILLA, DOCUMENTS, question=words(7, 8))[1].reused_tokens == 0
    assert kept.answer(SCOUT, DOCUMENTS, question=ASKED)[1].reused_tokens == 0
    assert kept.answer(VANILLA, [OTHER], question=ASKED)[1].reused_tokens > 0


def test_no_more_prompts_are_kept_than_are_compared(model: Tiny) -> None:
    with rig(model, prefix_cache=True, pool_tokens=8000) as running:
        for n in range(MAX_PROMPTS + 5):
            running.answer(
                VANILLA, [ChunkTokens(n, words(100 + n, 40))], question=ASKED, max_tokens=2
            )
        share = running.engine.prefix_cache.share
        assert share == pytest.approx(MAX_PROMPTS * (7 + 40 + 8 + 2) / 8000)


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 300), max_size=40),
    part=st.lists(st.integers(0, 300), min_size=1, max_size=3),
    at=st.integers(0, 40),
    inserted=st.booleans(),
)
def test_a_text_is_found_where_it_stands(
    text: list[int], part: list[int], at: int, inserted: bool
) -> None:
    whole = [*text[:at], *part, *text[at:]] if inserted else text
    stands = any(whole[i : i + len(part)] == part for i in range(len(whole)))
    assert holds(torch.tensor(whole, dtype=torch.long), part) == stands


@pytest.mark.parametrize("documents", [[], DOCUMENTS], ids=["chat", "documents"])
@pytest.mark.parametrize("method", [VANILLA, SCOUT], ids=lambda m: m.name)
def test_prompts_that_come_together_share_their_beginning(
    kept: Rig, fresh: Rig, method: Method, documents: Sequence[ChunkTokens]
) -> None:
    """The first is still being answered when the others start."""
    beginning = words(8, 60)
    questions = [[*beginning, *words(20 + n, 9)] for n in range(4)]
    names = [kept.submit(method, documents, question=q, max_tokens=48) for q in questions]
    begin(kept, names[-1])
    assert len(kept.engine.scheduler.running) == 4  # nothing was answered and kept meanwhile
    kept.run()
    reused = [kept.done(name).report.reused_tokens for name in names]
    alike = kept.done(names[0]).report.prompt_tokens - 9
    exact = method == VANILLA or not documents
    assert reused == ([0, *[alike] * 3] if exact else [0] * 4)
    for name, question in zip(names, questions, strict=True):
        expected, _ = fresh.answer(method, documents, question=question, max_tokens=48)
        assert kept.tokens(name) == expected
    assert kept.engine.pool_free_share == 1.0


def test_the_same_prompt_twice_at_once_is_computed_once(kept: Rig, fresh: Rig) -> None:
    """By any method: the second continues the first one's repaired KV."""
    names = [kept.submit(SCOUT, DOCUMENTS, question=ASKED, max_tokens=12) for _ in range(2)]
    kept.run()
    first, second = (kept.done(name).report for name in names)
    assert second.reused_tokens == second.prompt_tokens and first.reused_tokens == 0
    assert {d.tier for d in second.documents} == {"pool"}
    expected, _ = fresh.answer(SCOUT, DOCUMENTS, question=ASKED, max_tokens=12)
    assert [kept.tokens(name) for name in names] == [expected] * 2
