"""Earlier turns behind other documents: computed, or what the turn before left of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.replies import Explained
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method
from kvstitch.service.worker.sequences.reuse import HistoryKV
from tests.references.fusion import share, top
from tests.references.prefill import Prompt, Stored, Trace, index_mask
from tests.references.question_scout import Scout, question_scout
from tests.references.shift import shifted_pass
from tests.service.worker.engines import PIE, VANILLA, Rig, rig
from tests.service.worker.tiny import S, Tiny, assert_close

RATIO = 0.3
SCOUT = Method("question_scout", {"ratio": RATIO})


def words(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 95) for _ in range(count)]


DOCUMENTS = [ChunkTokens(n, words(n, 24)) for n in (1, 2, 3)]
OTHERS = [ChunkTokens(4, words(4, 30)), DOCUMENTS[1], ChunkTokens(5, words(5, 20))]
ASKED, NEW = words(6, 66), words(7, 9)
START = len(S) + 72
"""Of the first question, behind the documents."""


@pytest.fixture
def running(model: Tiny) -> Iterator[Rig]:
    with rig(model, prefix_cache=True, pool_tokens=2000) as running:
        running.precompute([*DOCUMENTS, *OTHERS])
        yield running


def first_turn(running: Rig, method: Method, **changes: Any) -> list[int]:
    return running.answer(method, DOCUMENTS, question=ASKED, **changes)[0]


def second_turn(
    running: Rig, method: Method, first: list[int], **changes: Any
) -> tuple[list[int], Report]:
    history = [*ASKED, *first]
    given: dict[str, Any] = {
        "documents": OTHERS,
        "question": [*history, *NEW],
        "history": len(history),
        "history_mode": "reuse",
        **changes,
    }
    return running.answer(method, **given)


def logits_left(running: Rig) -> torch.Tensor:
    """Of the first token of the prompt that was answered last."""
    return running.engine.prefix_cache._prompts[-1].logits


def turns_in_place(model: Tiny, method: Method, first: list[int]) -> Prompt:
    """The second turn's prompt, with the history's KV as the first turn left it."""
    reference = model.reference
    before = model.prompt(S, [d.ids for d in DOCUMENTS], [*ASKED, *first[:-1]])
    # Decoded rows are what a longer question's would be, except that they chose no rows.
    if method is PIE:
        left = reference.pie(before)
    else:
        asked = Prompt(before.system, before.documents, ASKED, before.stored)
        chosen = question_scout(reference, asked, Scout(RATIO))
        left = _behind(model, before, chosen)
    tokens = len(ASKED) + len(first) - 1
    rows = slice(START, START + tokens)
    history = Stored([k[rows] for k in left.k_pre], [v[rows] for v in left.v], START)
    others = model.prompt(S, [d.ids for d in OTHERS], NEW)
    turns = [[*ASKED, *first[:-1]], first[-1:]]
    return Prompt(others.system, [*others.documents, *turns], NEW, [*others.stored, history, None])


def scouted(model: Tiny, prompt: Prompt, end: int) -> tuple[Trace, list[int]]:
    """question_scout where the rows before `end` are candidates and all behind it are computed.

    The question pass does not see the one token of the history that nothing is stored for.
    """
    reference, n, asked = model.reference, len(prompt.ids), prompt.question_indices
    hidden = prompt.indices(uncached=True)

    def sight(rows: list[int], tokens: int) -> torch.Tensor:
        mask = index_mask(rows, tokens)
        mask[:, hidden] = False
        return mask

    placed = [(k.nan_to_num(), v.nan_to_num()) for k, v in reference.placed(prompt)]
    seen = reference.stitched(prompt.ids, placed, [asked] * reference.layers, mask=sight)
    total = torch.zeros(n)
    for layer in (2, 3):
        of_rows = seen.attention[layer][:, asked].sum(0)
        total += of_rows[-1] + 2 * of_rows.mean(0)
    candidates = range(len(S), end)
    chosen = top(total.tolist(), candidates, share(RATIO, n))
    weights = [0.25 if t in candidates else 0.0 for t in range(n)]
    rows = sorted({*chosen, *range(end, n)})
    return shifted_pass(reference, prompt, rows, (chosen, chosen), (weights, weights)), chosen


def expected(model: Tiny, method: Method, first: list[int]) -> tuple[torch.Tensor, int]:
    """The second turn's logits by the reference, and how many rows of the history it repairs."""
    prompt = turns_in_place(model, method, first)
    if method is PIE:
        return model.reference.pie(prompt).logits[-1], 0
    trace, chosen = scouted(model, prompt, prompt.starts[5])
    return trace.logits[-1], sum(t >= prompt.starts[4] for t in chosen)


def _behind(model: Tiny, before: Prompt, chosen: Trace) -> Trace:
    """The first turn with its answer: the documents' KV as the question left it."""
    stored: list[Stored | None] = [
        Stored(
            [_unrotated(model, k, rows, layer) for layer, k in enumerate(chosen.k)],
            [v[rows] for v in chosen.v],
            rows.start,
        )
        for rows in (
            slice(a, b) for a, b in zip(before.starts[:-1], before.starts[1:], strict=True)
        )
    ]
    return model.reference.pie(replace(before, stored=stored))


def _unrotated(model: Tiny, k: torch.Tensor, rows: slice, layer: int) -> torch.Tensor:
    # By the product, which `test_keys_are_turned_back` holds against the rotation.
    return model.decoder.ropes[layer].unrotate(k[rows], torch.arange(rows.start, rows.stop))


@pytest.mark.parametrize("method", [PIE, SCOUT], ids=lambda m: m.name)
def test_reused_turns_are_what_the_reference_computes(
    running: Rig, model: Tiny, method: Method
) -> None:
    first = first_turn(running, method)
    tokens, report = second_turn(running, method, first)
    logits, repaired = expected(model, method, first)
    assert_close("logits", logits_left(running), logits)
    history = len(ASKED) + len(first) - 1  # the last token of an answer was never fed
    assert report.history_tokens == history - repaired
    assert repaired > 0 or method is PIE
    computed = repaired + 1 + len(NEW)
    documents = sum(d.rows_recomputed for d in report.documents)
    assert report.recomputed_tokens == computed + documents
    assert report.cached_tokens == report.prompt_tokens - report.recomputed_tokens
    assert report.reused_tokens == 0 and len(tokens) == 6


def test_a_third_turn_takes_what_the_second_left(running: Rig) -> None:
    first = first_turn(running, PIE)
    second, _ = second_turn(running, PIE, first)
    question = [*ASKED, *first, *NEW, *second]
    _, report = running.answer(
        PIE,
        OTHERS[:2],
        question=[*question, *words(8, 5)],
        history=len(question),
        history_mode="reuse",
    )
    assert report.history_tokens == len(question) - 1


def test_computed_turns_are_what_full_prefill_of_them_is(running: Rig, model: Tiny) -> None:
    """By PIE: documents as they are stored, all else computed."""
    first = first_turn(running, PIE)
    _, report = second_turn(running, PIE, first, history_mode="compute")
    prompt = model.prompt(S, [d.ids for d in OTHERS], [*ASKED, *first, *NEW])
    assert_close("logits", logits_left(running), model.reference.pie(prompt).logits[-1])
    assert report.history_tokens == 0
    assert report.recomputed_tokens == len(prompt.question)


def test_computed_turns_are_seen_where_rows_are_chosen(running: Rig, model: Tiny) -> None:
    """As the turn before left them; then all their rows are computed."""
    first = first_turn(running, SCOUT)
    _, report = second_turn(running, SCOUT, first, history_mode="compute")
    prompt = turns_in_place(model, SCOUT, first)
    tokens = len(ASKED) + len(first)
    trace, chosen = scouted(model, prompt, prompt.starts[4])
    assert_close("logits", logits_left(running), trace.logits[-1])
    assert report.history_tokens == 0
    assert report.recomputed_tokens == len(chosen) + tokens + len(NEW)


def test_full_prefill_reuses_no_turns_of_other_documents(running: Rig, model: Tiny) -> None:
    first = first_turn(running, VANILLA)
    _, report = second_turn(running, VANILLA, first)
    assert report.history_tokens == 0
    ids = [*S, *(i for d in OTHERS for i in d.ids), *ASKED, *first, *NEW]
    assert_close("logits", logits_left(running), model.reference.vanilla(ids).logits[-1])


def test_the_same_documents_continue_the_prompt(running: Rig) -> None:
    first = first_turn(running, PIE)
    _, report = second_turn(running, PIE, first, documents=DOCUMENTS)
    assert report.history_tokens == 0
    assert report.reused_tokens == report.prompt_tokens - len(NEW) - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "other"},
        {"fusion": SCOUT},
        {"prefix_cache": False},
        {"history_mode": "compute"},
        {"history": 63},
        {"history": 66},  # the question, which others may have asked, without the answer
        {"question": [94, *words(9, 80)], "history": 70},
        {"question": [*ASKED[:-1], 96, *words(9, 20)], "history": 70},
        {"eviction": Method("snapkv", {"budget": 40})},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_turns_that_are_not_reused(running: Rig, changes: dict[str, Any]) -> None:
    first = first_turn(running, PIE)
    method = changes.pop("fusion", PIE)
    if changes.get("tenant"):
        running.precompute(OTHERS)
    _, report = second_turn(running, method, first, **changes)
    assert report.history_tokens == 0 and report.reused_tokens == 0


def test_turns_whose_prompt_was_evicted_are_computed(model: Tiny) -> None:
    """Before the request came, and while it waited."""
    with rig(model, prefix_cache=True, pool_tokens=420, max_running=1) as running:
        running.precompute([*DOCUMENTS, *OTHERS])
        first = first_turn(running, PIE)
        wanted, report = second_turn(running, PIE, first, history_mode="compute")
        assert report.history_tokens == 0
        running.engine.prefix_cache.forget_all()
        first_turn(running, PIE)
        big = running.submit(VANILLA, [], question=words(9, 190), max_tokens=60)
        history = [*ASKED, *first]
        waits = running.submit(
            PIE,
            OTHERS,
            question=[*history, *NEW],
            history=len(history),
            history_mode="reuse",
        )
        running.run()
        assert running.done(big).report.completion_tokens > 0
        assert running.done(waits).report.history_tokens == 0
        assert running.tokens(waits) == wanted


def test_what_turns_have_seen_is_deleted_with_them(running: Rig) -> None:
    """The second turn does not hold the first one's documents, but its history has seen them."""
    first = first_turn(running, PIE)
    second, report = second_turn(running, PIE, first)
    assert report.history_tokens > 0
    running.engine.forget([], [tuple(DOCUMENTS[0].ids)])
    assert running.engine.prefix_cache.share == 0
    question = [*ASKED, *first, *NEW, *second]
    _, report = running.answer(
        PIE,
        OTHERS,
        question=[*question, *NEW],
        history=len(question),
        history_mode="reuse",
    )
    assert report.history_tokens == 0


def test_a_running_prompt_whose_turns_have_seen_a_deleted_text_is_not_kept(running: Rig) -> None:
    first = first_turn(running, PIE)
    history = [*ASKED, *first]
    name = running.submit(
        PIE,
        OTHERS,
        question=[*history, *NEW],
        history=len(history),
        history_mode="reuse",
        max_tokens=30,
    )
    while not running.tokens(name):
        running.events.extend(running.engine.step())
    running.engine.forget([], [tuple(DOCUMENTS[0].ids)])
    running.run()
    assert running.done(name).report.history_tokens > 0
    assert running.engine.prefix_cache.share == 0


def test_a_forecast_says_what_would_be_reused(running: Rig) -> None:
    first = first_turn(running, PIE)
    history = [*ASKED, *first]
    request = Generate(
        "e", S, OTHERS, [*history, *NEW], PIE, history=len(history), history_mode="reuse"
    )
    running.engine.explain(request)
    forecasts: list[Explained] = []
    while not forecasts:
        forecasts = [e for e in running.engine.step() if isinstance(e, Explained)]
    forecast = forecasts[0].forecast
    assert forecast.history_tokens == len(history) - 1
    assert forecast.recomputed_tokens == 1 + len(NEW)
    _, report = second_turn(running, PIE, first)
    assert report.recomputed_tokens == forecast.recomputed_tokens
    assert report.flops == pytest.approx(forecast.flops, rel=0.02)


def test_another_question_after_the_same_turns(running: Rig) -> None:
    """Also where the earlier answer is not among them: their own answers are."""
    first = first_turn(running, PIE)
    second_turn(running, PIE, first, history_mode="compute")
    history = [*ASKED, *first]
    running.engine.forget([], [tuple(DOCUMENTS[0].ids)])  # of the first turn
    _, report = running.answer(
        PIE, DOCUMENTS[:2], question=[*history, *words(9, 9)], history=72, history_mode="reuse"
    )
    assert report.history_tokens == len(history) == 72


def test_the_whole_question_is_no_history(running: Rig) -> None:
    with pytest.raises(InvalidRequest, match="history must be 0 to 8"):
        running.submit(PIE, OTHERS, question=NEW, history=9)


def test_keys_are_turned_back(any_model: Tiny) -> None:
    """For every family: attention scaling, halves in another order, layers without RoPE."""
    decoder = any_model.decoder
    positions = torch.arange(5, 25)
    x = torch.randn(20, decoder.kv_heads, decoder.head_dim)
    for rope in decoder.ropes:
        assert_close("keys", rope.unrotate(rope.rotate(x, positions), positions), x)


def test_a_copy_outlives_the_prompt(running: Rig, model: Tiny) -> None:
    first_turn(running, PIE)
    prompt = running.engine.prefix_cache._prompts[-1]
    rows = slice(START, START + 40)
    taken = HistoryKV(model.decoder, prompt.kv, rows)
    k, v = (x.clone() for x in taken.layer(2))
    running.engine.prefix_cache.forget_all()
    running.answer(PIE, OTHERS, question=words(9, 90))
    assert torch.equal(taken.layer(2)[0], k) and torch.equal(taken.layer(2)[1], v)
