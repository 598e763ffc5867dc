"""The gate in an engine: checks are correct, a broken method is replaced, a good one is not."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.gate.shadow import WORST_NATS, compare
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.gate.gated_engine import (
    ALL,
    BROKEN,
    ask,
    check,
    gate_of,
    state_of,
    values,
)
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, random_model, tiny_config, tiny_of


def test_a_check_is_the_eager_references(any_family: Tiny) -> None:
    """KL and top-1 of one request, against a slow decoder written from the papers alone."""
    with rig(any_family, checks=ALL) as r:
        r.precompute()
        ask(r, PIE)
        found = values(r)
    full = any_family.reference.vanilla([*S, *D1, *D2, *D3, *Q]).logits[-1]
    fused = any_family.reference.pie(any_family.prompt(), 0).logits[-1]
    p, q = full.double().softmax(-1), fused.double().softmax(-1)
    kl = float((p * (p.log() - q.log())).sum())
    assert found["kvstitch_gate_kl_nats_sum", "pie"] == pytest.approx(kl, rel=1e-3)
    outcome = "agree" if full.argmax() == fused.argmax() else "disagree"
    assert found["kvstitch_gate_checks_total", "pie", outcome] == 1
    buckets = {key[2]: v for key, v in found.items() if key[0] == "kvstitch_gate_kl_nats_bucket"}
    assert {bound: count for bound, count in buckets.items()} == {
        bound: float(kl <= float(bound)) for bound in buckets
    }


def test_comparing() -> None:
    logits = torch.tensor([2.0, 1.0, -3.0])
    same = compare(logits, logits + 5)  # a constant changes no distribution
    assert same.kl == pytest.approx(0.0, abs=1e-9) and same.agrees
    assert not compare(logits, logits.flip(0)).agrees
    impossible = torch.tensor([float("-inf"), 1.0, 0.0])
    assert compare(logits, impossible).kl == WORST_NATS
    assert compare(impossible, logits).kl < WORST_NATS
    broken = compare(logits, torch.full((3,), float("nan")))
    assert broken.kl == WORST_NATS and not broken.agrees


def test_a_broken_method_trips_and_answers_are_full_prefills(model: Tiny) -> None:
    with rig(model, checks=ALL) as r:
        r.precompute()
        full, _ = r.answer(VANILLA)
        before = [ask(r, BROKEN) for _ in range(4)]
        assert all(report.gate is None for _, report in before)
        assert all(tokens != full for tokens, _ in before)
        after = [ask(r, BROKEN) for _ in range(3)]
        for tokens, report in after:
            assert tokens == full
            assert report.gate is not None and report.gate.state == "full_prefill"
            assert report.gate.used == Method("vanilla")
            assert "checks agreed with full prefill" in report.gate.why
            assert any("does not trust" in warning for warning in report.warnings)
            assert report.cached_tokens == 0
        assert state_of(r, "full_reuse").state == "full_prefill"
        assert values(r)["kvstitch_gate_state", "full_reuse"] == 2
        # Another method is not to blame, nor is the same one with other parameters.
        assert ask(r, PIE)[1].gate is None


def test_a_ratio_is_raised_step_by_step(model: Tiny) -> None:
    """Each step is judged by checks of its own; the last one is full prefill."""
    requested = Method("a3", {"ratio": 0.05})
    seen = []
    with rig(model, checks=ALL) as r:
        r.precompute()
        for _ in range(60):
            _, report = ask(r, requested)
            if report.gate is None:
                seen.append((0.05, "ok"))
            else:
                ratio = 1.0 if report.ratio is None else report.ratio
                seen.append((ratio, report.gate.state))
    steps = list(dict.fromkeys(seen))
    fallbacks = [
        (0.05, "ok"),
        *[(r, "ratio_raised") for r in (0.1, 0.2, 0.4)],
        (1.0, "full_prefill"),
    ]
    assert steps == fallbacks[: len(steps)] and len(steps) >= 2
    assert seen.count(steps[0]) == 4


def test_an_exact_method_never_trips(model: Tiny) -> None:
    """One document behind the prefix it was computed with: reuse is exact, whatever the method."""
    with rig(model, checks=ALL) as r:
        r.precompute(DOCUMENTS[:1], "system")
        for _ in range(40):
            _, report = ask(r, BROKEN, DOCUMENTS[:1], prefix_mode="system", max_tokens=1)
            assert report.gate is None and report.cached_tokens > 0
        found = state_of(r, "full_reuse")
    assert (found.state, found.trips, found.checks, found.agreement) == ("ok", 0, 32, 1.0)
    assert found.mean_kl is not None and found.mean_kl < 1e-6


def test_back_when_it_agrees_again(model: Tiny) -> None:
    """Fallen back, its answers are full prefill's while it is run beside them; then it returns."""
    with rig(model, checks=ALL) as r:
        r.precompute()
        r.precompute(DOCUMENTS[:1], "system")
        for _ in range(4):
            ask(r, BROKEN)
        for _ in range(10):  # still as bad: no way back
            assert ask(r, BROKEN)[1].gate is not None
        assert state_of(r, "full_reuse").recovery_agreement == 0.0
        good = [
            ask(r, BROKEN, DOCUMENTS[:1], prefix_mode="system", max_tokens=1)[1].gate is None
            for _ in range(8)
        ]
        # The window of three has to be of good ones only, then the next answer is its own.
        assert good == [False] * 3 + [True] * 5
        assert state_of(r, "full_reuse").trips == 1


def test_a_reset_trusts_again(model: Tiny) -> None:
    with rig(model, checks=ALL) as r:
        r.precompute()
        for _ in range(4):
            ask(r, BROKEN)
        assert ask(r, BROKEN)[1].gate is not None
        gate_of(r).reset("pie")
        assert state_of(r, "full_reuse").state == "full_prefill"
        gate_of(r).reset("full_reuse")
        assert state_of(r, "full_reuse").state == "ok"
        assert ask(r, BROKEN)[1].gate is None


def test_what_is_not_checked(model: Tiny) -> None:
    """Full prefill itself, prompts of which nothing was cached or that have no documents, and
    those that an eviction method replaced by shorter ones."""
    gemfilter = Method("gemfilter", {"budget": 16})
    with rig(model, checks=ALL) as r:
        ask(r, PIE)  # nothing is stored yet
        r.precompute()
        ask(r, VANILLA)
        ask(r, PIE, [])
        ask(r, Method("a3", {"ratio": 1.0}))
        ask(r, PIE, eviction=gemfilter)
        checks = [v for k, v in values(r).items() if k[0] == "kvstitch_gate_checks_total"]
        assert checks and sum(checks) == 0  # counted from 0, so that the first is an increase
        ask(r, PIE, eviction=Method("snapkv", {"budget": 16, "kernel": 3}))
        assert sum(v for k, v in values(r).items() if k[0] == "kvstitch_gate_checks_total") == 1


def test_every_method_can_be_checked() -> None:
    """The sparse one too, and answers are the same with a gate as without."""
    model = tiny_of(random_model(tiny_config("qwen3", max_position_embeddings=1024)))
    long = [ChunkTokens(n, [(7 * n + 3 * i) % 90 + 5 for i in range(260)]) for n in (1, 2)]
    methods = [PIE, A3, Method("samkv"), Method("infoflow")]
    answers = {}
    for checks in (None, ALL):
        with rig(model, checks=checks, pool_tokens=1400) as r:
            r.precompute(long)
            for method in methods:
                answers[checks is None, method.name] = r.answer(method, long, max_tokens=3)[0]
            if checks is not None:
                check(r)
                made = {k[1] for k in values(r) if k[0] == "kvstitch_gate_kl_nats_sum"}
                assert made == {method.name for method in methods}
    for method in methods:
        assert answers[True, method.name] == answers[False, method.name]


def test_without_a_gate_nothing_is_watched(model: Tiny) -> None:
    with rig(model) as r:
        assert r.engine.gate is None
        r.precompute()
        name = r.submit(PIE)
        sequence = r.engine.scheduler.find(name)
        assert sequence is not None and sequence.asked.gated is None
        r.run()
        assert r.done(name).report.gate is None
