"""`exact_below`: from the first token that is not certain on, an answer is full prefill's."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.replies import Failed
from kvstitch.service.messages.requests import Generate, Method
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.sequences import exact, prefill_launcher
from kvstitch.service.worker.sequences.sequence import EngineSequence
from tests.service.worker.engines import DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.gate.test_handed_over import Room
from tests.service.worker.tiny import Q, S, Tiny

EVERYTHING = 1e6  # nats: nothing is as certain
LENGTH = 12


def uncertain_at(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Let the answer's token `place` be the first that is uncertain."""
    real = exact.uncertain

    def found(sequence: EngineSequence, logits: Tensor) -> int | None:
        if real(sequence, logits) is None:
            return None
        row = place - len(sequence.tokens)
        return row if 0 <= row < len(logits) else None

    for user in ("answering", "prefilling"):
        monkeypatch.setattr(f"kvstitch.service.worker.engine.{user}.uncertain", found)


@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("place", [0, 1, 5, LENGTH - 1])
def test_the_rest_is_full_prefill_s_behind_the_answer_so_far(
    model: Tiny, monkeypatch: pytest.MonkeyPatch, place: int, prefix_cache: bool, drafts: int
) -> None:
    with rig(model, prefix_cache=prefix_cache, draft_tokens=drafts) as r:
        r.answer(PIE, max_tokens=1, prefix_cache=False)  # so that the chunks are stored
        stitched, _ = r.answer(PIE, max_tokens=LENGTH, prefix_cache=False)
        behind = [*Q, *stitched[:place]]
        expected, _ = r.answer(
            VANILLA, question=behind, max_tokens=LENGTH - place, prefix_cache=False
        )
        uncertain_at(monkeypatch, place)
        tokens, report = r.answer(PIE, max_tokens=LENGTH, exact_below=EVERYTHING)
        assert tokens == [*stitched[:place], *expected]
        assert report.exact_from == place
        assert report.completion_tokens == LENGTH and report.flops >= report.full_prefill_flops
        assert report.kept_per_layer and {"prefill", "first_token", "decode"} <= set(report.stages)
        again, found = r.answer(VANILLA, max_tokens=LENGTH)
        whole, _ = r.answer(VANILLA, max_tokens=LENGTH, prefix_cache=False)
        assert again == whole and bool(found.reused_tokens) == (prefix_cache and not place)
        assert r.engine.pool.free_share == 1.0 or prefix_cache


def test_a_prompt_without_an_answer_is_not_computed_twice(model: Tiny) -> None:
    with rig(model) as r:
        r.answer(PIE, max_tokens=1)
        tokens, report = r.answer(PIE, max_tokens=0, exact_below=EVERYTHING)
        assert tokens == [] and report.exact_from is None


def test_where_another_engine_decodes_it_is_refused(model: Tiny) -> None:
    request = Generate("r", S, DOCUMENTS, Q, PIE, hand_over=True, exact_below=0.1)
    told = pytest.raises(InvalidRequest, match="leave exact_below out")
    with rig(model, hand_over=Room()) as r, told as refused:
        r.engine.submit(request)
    assert refused.value.field == "exact_below"


def test_what_is_certain_stays_as_it_is(model: Tiny) -> None:
    with rig(model) as r:
        r.answer(PIE, max_tokens=1)
        stitched, plain = r.answer(PIE, max_tokens=LENGTH)
        tokens, report = r.answer(PIE, max_tokens=LENGTH, exact_below=1e-12)
        assert tokens == stitched and report.exact_from is None and report.flops == plain.flops


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0, "seed": 1},
        {"eviction": Method("snapkv", {"budget": 8})},
        {"fusion": VANILLA},
        {"fusion": Method("samkv")},
    ],
    ids=["drawn", "evicted", "exact anyway", "held in part"],
)
def test_where_it_means_nothing_nothing_changes(model: Tiny, asked: dict[str, object]) -> None:
    with rig(model) as r:
        r.answer(PIE, max_tokens=1)
        plain, _ = r.answer(**{"fusion": PIE, "max_tokens": 6, **asked})
        tokens, report = r.answer(**{"fusion": PIE, **asked}, max_tokens=6, exact_below=EVERYTHING)
        assert tokens == plain and report.exact_from is None


def test_others_are_answered_meanwhile_and_an_abort_leaves_nothing_wrong(
    model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exact.computed_in_full

    def aborted(decoder: DecoderModel, sequence: EngineSequence, recordings: None) -> Any:
        sequence.abort_reason = "disconnect"  # before the next step
        return real(decoder, sequence, recordings)

    with rig(model, prefix_cache=True) as r:
        r.answer(PIE, max_tokens=1, prefix_cache=False)
        other, _ = r.answer(PIE, DOCUMENTS[1:], max_tokens=LENGTH, prefix_cache=False)
        uncertain_at(monkeypatch, 3)
        monkeypatch.setattr(prefill_launcher, "computed_in_full", aborted)
        name = r.submit(PIE, max_tokens=LENGTH, exact_below=EVERYTHING)
        beside = r.submit(PIE, DOCUMENTS[1:], max_tokens=LENGTH, prefix_cache=False)
        r.run()
        assert r.done(name).report.exact_from == 3 and len(r.tokens(name)) in (3, 4)
        assert r.tokens(beside) == other
        assert not any(isinstance(event, Failed) for event in r.events)
        whole, _ = r.answer(VANILLA, max_tokens=LENGTH, prefix_cache=False)
        assert r.answer(VANILLA, max_tokens=LENGTH)[0] == whole
