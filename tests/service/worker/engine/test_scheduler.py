"""Which sequence is served next and for how many steps."""

from __future__ import annotations

import pytest

from kvstitch.service.messages.requests import Precompute
from kvstitch.service.worker.engine.scheduler import IDLE_WORK_SHARE, StepBudget
from kvstitch.service.worker.forward import layer_ops
from tests.service.worker.engines import A3, DOCUMENTS, VANILLA, Rig, rig
from tests.service.worker.tiny import Tiny


def steps_between_decodes(decode_s: float, step_s: float) -> int:
    budget = StepBudget()
    budget.prefilled(step_s)
    budget.decoded(decode_s)
    steps = 1
    budget.prefilled(step_s)
    while budget.prefill_goes_on:
        budget.prefilled(step_s)
        steps += 1
    return steps


@pytest.mark.parametrize(("decode", "step", "steps"), [(10, 10, 1), (10, 2, 4), (10, 40, 1)])
def test_prefill_gets_about_as_long_as_a_decode_step(
    decode: float, step: float, steps: int
) -> None:
    assert steps_between_decodes(decode, step) == steps


def test_the_background_gets_its_share_under_load() -> None:
    budget, precompute_queue = StepBudget(), 0
    for _ in range(1000):
        budget.decoded(1.0)
        budget.prefilled(1.0)
        if budget.idle_work_is_due:
            budget.idle_work_stepped(2.0)
            precompute_queue += 1
    assert precompute_queue * 2.0 == pytest.approx(2000 * IDLE_WORK_SHARE, rel=0.1)


def test_a_background_without_work_saves_nothing_up() -> None:
    budget = StepBudget()
    budget.idle_work_stepped(1.0)
    for _ in range(1000):
        budget.decoded(1.0)
    for _ in range(3):
        budget.idle_work_stepped(1.0)
        assert not budget.idle_work_is_due


def test_a_layer_of_many_rows_is_many_steps_and_the_same_answer(
    model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(model) as r:
        r.precompute()
        expected = [r.answer(method, max_tokens=8)[0] for method in (VANILLA, A3)]
    monkeypatch.setattr(layer_ops, "TILE_ROWS", {"cpu": 5})
    monkeypatch.setattr(layer_ops, "ATTENDED_PAIRS", {"cpu": 3 * 38})
    with rig(model) as r:
        r.precompute()
        assert [r.answer(method, max_tokens=8)[0] for method in (VANILLA, A3)] == expected
        name = r.submit(VANILLA)
        steps = 0
        while not r.tokens(name):
            r.events.extend(r.engine.step())
            steps += 1
        r.run()
    rows = 38
    tiles, attended = -(-rows // 5), -(-rows // 3)
    layers = model.decoder.layers
    # Projections, attention and MLP of every layer; the last one's attention is for one row.
    assert steps >= layers * tiles + (layers - 1) * (attended - 1 + tiles)


def test_streams_go_on_between_the_tiles_of_a_long_prompt(
    model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_ops, "TILE_ROWS", {"cpu": 4})
    with rig(model, pool_tokens=800) as r:
        streams = [r.submit(VANILLA, [], max_tokens=60) for _ in range(4)]
        while not all(r.tokens(name) for name in streams):
            r.events.extend(r.engine.step())
        long = r.submit(VANILLA)
        while not r.tokens(long):
            before = [len(r.tokens(name)) for name in streams]
            running = {s.id for s in r.engine.scheduler.running}
            r.events.extend(r.engine.step())
            for name, had in zip(streams, before, strict=True):
                assert name not in running or len(r.tokens(name)) == had + 1 or ended(r, name)
        r.run()


def ended(r: Rig, name: str) -> bool:
    return any(e.id == name and hasattr(e, "finish_reason") for e in r.events)


def test_precompute_is_done_though_requests_never_pause(model: Tiny) -> None:
    with rig(model) as r:
        for address in r.engine.admission.addresses(Precompute("", [], DOCUMENTS))[1:]:
            assert address is not None
            r.engine.precompute_queue.add(address, id="ingest")
        names = [r.submit(VANILLA, max_tokens=5)]
        while r.engine.precompute_queue.pending and len(names) < 500:
            if len(r.engine.scheduler.active) < 3:
                names.append(r.submit(VANILLA, max_tokens=5))
            r.events.extend(r.engine.step())
        assert not r.engine.precompute_queue.pending
        assert r.engine.scheduler.active  # there was always a request
        r.run()
