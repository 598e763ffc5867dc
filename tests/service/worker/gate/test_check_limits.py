"""The gate together with the rest of the engine: spare time, KV, aborts, purges, forecasts."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.messages.replies import Explained
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method, Precompute
from kvstitch.service.worker.forward import layer_ops
from kvstitch.service.worker.gate.correctness_gate import MAX_PENDING, GateSettings
from kvstitch.service.worker.gate.method_trust import MAX_KNOWN
from kvstitch.service.worker.gate.policy import Bounds
from kvstitch.service.worker.methods.registry import make_fusion
from tests.service.worker.engines import DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.gate.gated_engine import ALL, BROKEN, ask, check, gate_of, state_of
from tests.service.worker.tiny import Q, S, Tiny, tiny


def test_more_answers_than_can_be_checked(model: Tiny) -> None:
    """What is due and not made is counted, and nothing piles up."""
    with rig(model, checks=ALL, pool_tokens=4000, max_running=64, max_waiting=64) as r:
        r.precompute()
        names = [r.submit(PIE, max_tokens=2) for _ in range(MAX_PENDING + 8)]
        r.run()
        assert gate_of(r).pending <= MAX_PENDING + 1  # and the one under way
        check(r)
        assert all(r.tokens(name) for name in names)
        counts = gate_of(r).counts
        total = counts.of("agree") + counts.of("disagree") + counts.of("skipped")
        assert total == len(names)


def test_an_aborted_request_is_still_checked(model: Tiny) -> None:
    """Its client left; what its first token said of the method is as true."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        name = r.submit(PIE, max_tokens=200)
        while not r.tokens(name):
            r.events.extend(r.engine.step())
        assert gate_of(r).pending == 1
        r.engine.abort(name, "disconnect")
        r.run()
        check(r)
        assert r.done(name).finish_reason == "disconnect"
        assert r.engine.pool.free_share == 1.0
        assert gate_of(r).counts.of("agree") + gate_of(r).counts.of("disagree") == 1


def test_a_check_gives_its_kv_up_to_a_request(model: Tiny) -> None:
    """The pool holds one prompt: a request that comes while a method is run beside the answers
    does not wait for it."""
    with rig(model, checks=ALL, pool_tokens=60) as r:
        r.precompute()
        for _ in range(4):
            ask(r, BROKEN)
        r.answer(BROKEN)  # while it decodes, no KV is free for the check that follows
        while not (r.engine.pool.free_share < 1 and r.engine.scheduler.idle):
            assert gate_of(r).pending, "the method was never run beside the answers"
            r.events.extend(r.engine.step())
        name = r.submit(VANILLA)
        r.events.extend(r.engine.step())
        assert r.engine.scheduler.prefilling, "the request waits for the check"
        r.run()
        check(r)
        assert len(r.tokens(name)) > 0
        assert gate_of(r).counts.of("skipped") == 1
        assert r.engine.pool.free_share == 1.0


def test_purged_documents_are_not_checked(model: Tiny) -> None:
    """Their tokens are let go of, pending or under way."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        names = [r.submit(PIE, max_tokens=1) for _ in range(6)]
        r.run()
        assert all(r.done(name) for name in names)
        r.engine.step()  # some check has begun
        left = gate_of(r).pending
        assert left > 1
        address = r.engine.admission.addresses(Precompute("", S, DOCUMENTS))[2]
        assert address is not None
        r.engine.forget([address.key], [])
        assert gate_of(r).pending == 0
        assert gate_of(r).counts.of("skipped") == left


def test_chunks_lost_while_fallen_back_come_back(model: Tiny) -> None:
    """Full prefill reads no chunk, so the run beside it sees to it that they are stored."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        for _ in range(4):
            ask(r, BROKEN)
        keys = {a.key for a in r.engine.admission.addresses(Precompute("", S, DOCUMENTS)) if a}
        r.store.delete(keys)
        ask(r, BROKEN)
        r.run()
        assert len(r.store.locate(keys)) == len(keys)


def test_checks_and_precompute_take_turns(model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waits for the other's end: an ingest of many chunks does not blind the gate, nor
    does a large share of checks stop an ingest."""
    monkeypatch.setattr(layer_ops, "TILE_ROWS", {"cpu": 20})  # one chunk at a time
    many = [ChunkTokens(n, [n % 90 + 5] * 20) for n in range(12)]
    with rig(model, checks=ALL, pool_tokens=4000) as r:
        r.precompute()
        for _ in range(8):
            r.submit(PIE, max_tokens=1)
        while not r.engine.scheduler.idle:
            r.events.extend(r.engine.step())
        for address in r.engine.admission.addresses(Precompute("", S, many)):
            assert address is not None
            r.engine.precompute_queue.add(address, id="ingest")
        checks, chunks = gate_of(r).pending, r.engine.precompute_queue.pending
        while gate_of(r).pending > checks // 2:
            r.events.extend(r.engine.step())
        assert 0 < r.engine.precompute_queue.pending < chunks
        r.run()
        check(r)
        assert r.engine.precompute_queue.counts["failed"] == 0


def test_a_fault_in_a_check_ends_that_check_only(model: Tiny) -> None:
    """The engine serves on, and the next check is made."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        r.submit(PIE, max_tokens=1)
        while not gate_of(r).pending:
            r.events.extend(r.engine.step())
        with torch.inference_mode():
            gate_of(r).advance()
        gate_of(r).fail_current(RuntimeError("out of memory"))
        assert gate_of(r).pending == 0
        assert len(ask(r, PIE)[0]) > 0
        counts = gate_of(r).counts
        assert (counts.of("skipped"), counts.of("agree") + counts.of("disagree")) == (1, 1)


def test_an_explanation_is_of_what_would_run(model: Tiny) -> None:
    with rig(model, checks=ALL) as r:
        r.precompute()
        for _ in range(4):
            ask(r, BROKEN)
        r.engine.explain(Generate("explained", S, DOCUMENTS, Q, BROKEN))
        explained: list[Explained] = []
        while not explained:
            explained = [e for e in r.engine.step() if isinstance(e, Explained)]
    forecast = explained[0].forecast
    assert [d.action for d in forecast.documents] == ["recompute"] * 3
    assert "does not trust" in forecast.warnings[0]


def test_auto_is_at_least_the_raised_ratio(model: Tiny) -> None:
    """And with full prefill there is none to choose."""
    requested = Method("a3", {"ratio": "auto"})
    bounds = Bounds(min_checks=2, agreement=1.0, kl=1e-6, recovery=2)
    with rig(model, checks=GateSettings(1.0, bounds), planner=True) as r:
        r.precompute()
        ratios = [ask(r, requested, max_tokens=1)[1].ratio for _ in range(12)]
    reported = [ratio for ratio in ratios if ratio is not None]
    assert reported[0] >= 0.15 and max(reported) >= 0.3 and reported == sorted(reported)
    assert ratios[-1] is None


def test_only_so_many_parameter_sets_are_known(model: Tiny) -> None:
    """Clients choose parameters; what is remembered of them is bounded, the fallen last to go."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        for _ in range(4):
            ask(r, BROKEN)
        for n in range(MAX_KNOWN + 20):
            gate_of(r).replacement("a3", make_fusion("a3", {"ratio": n / 1000}))
        states = gate_of(r).states()
        assert len(states) == MAX_KNOWN
        assert state_of(r, "full_reuse").state == "full_prefill"
        ratios = {s.fusion.parameters["ratio"] for s in states if s.fusion.name == "a3"}
        assert max(ratios) == (MAX_KNOWN + 19) / 1000 and 0.0 not in ratios


@pytest.mark.parametrize(
    ("family", "at_least", "at_most"), [("llama", 1, 1), ("deepseek_v3", 3, 20)]
)
def test_families_without_measurements_are_checked_more_often(
    family: str, at_least: int, at_most: int
) -> None:
    """Every tenth answer at first, whatever share is set; by chance, so about 7 of 60 and the
    first."""
    rare = GateSettings(0.0, Bounds(min_checks=1), seed=0)
    with rig(tiny(family, "default"), checks=rare) as r:
        r.precompute()
        for _ in range(60):
            ask(r, PIE, max_tokens=1)
        counts = gate_of(r).counts
        assert at_least <= counts.of("agree") + counts.of("disagree") <= at_most
