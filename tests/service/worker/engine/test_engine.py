"""The engine end to end on a tiny model: every request ends once, alone or with others, and neither
batching, nor the cache's state, nor aborts of others change an answer."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.errors import InvalidRequest, Overloaded, PromptTooLong, UnknownMethod
from kvstitch.service.messages.replies import Precomputed, TokenItem
from kvstitch.service.messages.requests import ChunkTokens, Method, Sampling
from kvstitch.service.worker.sampling.sampler import Sampler
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny


def greedy(model: Tiny, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy continuation."""
    out: list[int] = []
    for _ in range(count):
        token = int(model.model(torch.tensor([prompt + out])).logits[0, -1].argmax())
        if token == 0:
            break
        out.append(token)
    return out


def test_full_prefill_generates_what_transformers_generates(any_family: Tiny) -> None:
    with rig(any_family) as r:
        tokens, report = r.answer(VANILLA, max_tokens=12)
    assert tokens == greedy(any_family, [*S, *D1, *D2, *D3, *Q], 12)
    assert report.prompt_tokens == len([*S, *D1, *D2, *D3, *Q])
    assert report.cached_tokens == 0


def test_an_uncached_prompt_is_a_full_prefill_and_is_written_back(model: Tiny) -> None:
    with rig(model) as r:
        full, _ = r.answer(VANILLA)
        uncached, first = r.answer(A3)
        assert uncached == full
        assert [d.tier for d in first.documents] == ["cold"] * 3
        assert r.store.stats().new_keys == 4  # S and three documents
        _, second = r.answer(A3)
    assert [d.tier for d in second.documents] == ["memory"] * 3
    assert all(d.bytes > 0 for d in second.documents)


def test_new_orders_and_combinations_write_no_key(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute()
        written = r.store.stats().new_keys
        one, two, three = DOCUMENTS
        for documents in ([three, one, two], [two], [one, three], [two, two], [three, two, one]):
            _, report = r.answer(A3, documents)
            assert [d.tier for d in report.documents] == ["memory"] * len(documents)
        assert r.store.stats().new_keys == written == 4


def test_a_partly_uncached_prompt_recomputes_just_that_document(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute(DOCUMENTS[:2])
        _, report = r.answer(PIE)
    assert [d.tier for d in report.documents] == ["memory", "memory", "cold"]
    assert [d.rows_recomputed for d in report.documents] == [0, 0, len(D3)]
    assert report.recomputed_tokens == len(D3) + len(Q)
    assert report.cached_tokens == len([*S, *D1, *D2])


def test_answers_in_a_batch_are_those_given_alone(model: Tiny) -> None:
    requests = [
        (VANILLA, DOCUMENTS, None),
        (A3, DOCUMENTS[::-1], None),
        (PIE, DOCUMENTS[1:], None),
        (A3, DOCUMENTS, Method("snapkv", {"budget": 18, "kernel": 3})),
        (PIE, [], None),
    ]
    with rig(model) as r:
        r.precompute()
        alone = [r.answer(f, d, eviction=e, max_tokens=9)[0] for f, d, e in requests]
        names = [r.submit(f, d, eviction=e, max_tokens=9) for f, d, e in requests]
        r.run()
        assert [r.tokens(name) for name in names] == alone
        assert r.engine.pool.free_share == 1.0


def test_eviction_spares_the_first_token_and_frees_memory(model: Tiny) -> None:
    with rig(model, pool_tokens=60) as r:
        r.precompute()
        plain, _ = r.answer(A3, max_tokens=8)
        name = r.submit(A3, eviction=Method("snapkv", {"budget": 16, "kernel": 3}), max_tokens=8)
        while not r.tokens(name):
            r.events.extend(r.engine.step())
        held = 1.0 - r.engine.pool.free_share
        assert held == pytest.approx((16 + 8) / 60)  # the budget and room for the answer, exactly
        r.run()
        report = r.done(name).report
    assert r.tokens(name)[0] == plain[0]
    assert report.kept_per_layer == [16.0] * 5


def test_a_budget_below_instruction_and_question_warns(model: Tiny) -> None:
    with rig(model) as r:
        _, report = r.answer(PIE, eviction=Method("snapkv", {"budget": 4}))
    assert "every document token was evicted" in report.warnings[0]
    assert report.kept_per_layer == [float(len(S) + len(Q))] * 5


def test_abort_stops_within_one_step_and_frees_everything(model: Tiny) -> None:
    with rig(model) as r:
        name = r.submit(VANILLA, max_tokens=200)
        while len(r.tokens(name)) < 3:
            r.events.extend(r.engine.step())
        r.engine.abort(name, "disconnect")
        r.run()
        assert r.done(name).finish_reason == "disconnect"
        assert len(r.tokens(name)) == 3
        assert r.engine.pool.free_share == 1.0


def test_abort_in_the_middle_of_a_prefill(model: Tiny) -> None:
    with rig(model) as r:
        name = r.submit(VANILLA)
        r.events.extend(r.engine.step())
        assert r.engine.scheduler.next_prefill is not None
        r.engine.abort(name, "disconnect")
        r.run()
        assert r.done(name).finish_reason == "disconnect"
        assert r.tokens(name) == []
        assert r.engine.pool.free_share == 1.0
        r.engine.abort(name, "disconnect")  # long gone: ignored
        r.run()


def test_sampling_depends_on_the_seed_and_not_on_company(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute()
        alone, report = r.answer(PIE, temperature=1.5, seed=7, max_tokens=12)
        names = [r.submit(PIE, temperature=1.5, seed=seed, max_tokens=12) for seed in (6, 7, 8)]
        r.run()
        drawn = [r.tokens(name) for name in names]
        _, unseeded = r.answer(PIE, temperature=1.5)
    assert drawn[1] == alone and report.seed == 7
    assert len({tuple(d) for d in drawn}) == 3
    assert unseeded.seed is not None  # reported, so that the answer can be repeated


def test_what_does_not_fit_now_waits_and_keeps_its_turn(model: Tiny) -> None:
    with rig(model, pool_tokens=100) as r:
        names = [r.submit(VANILLA, max_tokens=30) for _ in range(5)]
        r.run()
        assert all(r.done(name).finish_reason in ("length", "stop") for name in names)
        firsts = [e.id for e in r.events if isinstance(e, TokenItem)]
        assert list(dict.fromkeys(firsts)) == names


def test_requests_that_can_never_run_are_refused(model: Tiny) -> None:
    with rig(model, pool_tokens=45, max_waiting=2) as r:
        with pytest.raises(PromptTooLong, match="this worker takes 44"):
            r.submit(PIE, [*DOCUMENTS, ChunkTokens(4, [7] * 40)])
        with pytest.raises(UnknownMethod, match="known methods: a3"):
            r.submit(Method("a4"))
        with pytest.raises(InvalidRequest, match=r"fusion.ratio must be a number from 0 to 1"):
            r.submit(Method("a3", {"ratio": 1.5}))
        with pytest.raises(InvalidRequest, match="the question has no tokens"):
            r.submit(PIE, question=[])
        r.submit()
        r.submit()
        with pytest.raises(Overloaded):
            r.submit()
        r.run()


def test_max_tokens_is_lowered_to_the_context_and_said(model: Tiny) -> None:
    with rig(model, pool_tokens=42) as r:
        tokens, report = r.answer(PIE, max_tokens=50)
    assert len(tokens) <= 42 - report.prompt_tokens
    assert "max_tokens was lowered from 50" in report.warnings[0]


def test_a_fault_in_one_prefill_spares_the_others(model: Tiny) -> None:
    with rig(model) as r:
        good = r.submit(PIE)
        bad = r.submit(PIE, [ChunkTokens(9, [10**6])])  # an id outside the vocabulary
        r.run()
        assert r.failed(bad).code == "worker_fault"
        assert r.done(good).finish_reason in ("length", "stop")
        assert r.engine.pool.free_share == 1.0


def test_a_fault_in_one_sampler_spares_the_others(model: Tiny) -> None:
    class Faulty(Sampler):
        @property
        def takes_likeliest(self) -> bool:
            return False

        def __call__(self, logits: torch.Tensor) -> int:
            raise RuntimeError("no token")

    with rig(model) as r:
        r.precompute()
        expected, _ = r.answer(PIE)
        good, bad = r.submit(PIE), r.submit(PIE)
        while not r.tokens(bad):
            r.events.extend(r.engine.step())
        sequence = r.engine.scheduler.find(bad)
        assert sequence is not None
        sequence.sampler = Faulty(Sampling())
        r.run()
        assert r.failed(bad).code == "worker_fault"
        assert r.tokens(good) == expected
        assert r.engine.pool.free_share == 1.0


def test_precompute_reports_each_chunk_once(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute()
        r.precompute()
        statuses = [e.status for e in r.events if isinstance(e, Precomputed)]
    assert statuses == ["stored"] * 4 + ["present"] * 4


def test_int8_chunks_change_little(model: Tiny) -> None:
    with rig(model) as raw, rig(model, codec="int8") as small:
        for r in (raw, small):
            r.precompute()
        exact, a = raw.answer(PIE)
        close, b = small.answer(PIE)
    assert b.documents[0].bytes < 0.6 * a.documents[0].bytes
    assert close[0] == exact[0]


@pytest.mark.parametrize("mode", ["none", "bos", "bos_keep", "system"])
def test_every_prefix_mode_hits_what_it_stored(model: Tiny, mode: str) -> None:
    with rig(model) as r:
        r.precompute(prefix_mode=mode)
        _, report = r.answer(A3, prefix_mode=mode)
        _, other = r.answer(A3, prefix_mode="system" if mode != "system" else "none")
    assert [d.tier for d in report.documents] == ["memory"] * 3
    assert [d.tier for d in other.documents] == ["cold"] * 3


def test_tenants_do_not_share_chunks(model: Tiny) -> None:
    with rig(model) as r:
        r.answer(PIE, tenant="red")
        _, same = r.answer(PIE, tenant="red")
        _, other = r.answer(PIE, tenant="blue")
    assert [d.tier for d in same.documents] == ["memory"] * 3
    assert [d.tier for d in other.documents] == ["cold"] * 3
