"""The cost of a request at a worker."""

from __future__ import annotations

import itertools
import random

import pytest

from service.gateway.fleet.routing.cost import AWAY, UNKNOWN_TIER, Place, Work, cost, document_s
from service.messages.replies import WorkerLoad

LOAD = WorkerLoad(
    token_s=1e-3,
    overhead_s=2e-3,
    step_s=1e-2,
    step_sequence_s=2e-3,
    token_bytes=1000.0,
    tiers={"ssd": (1e-3, 1e-9), "redis": (1e-2, 1e-8)},
)


def test_the_parts_of_the_formula() -> None:
    work = Work([100, 200, 50], 10, 20.0, repair=0.1)
    places: list[Place] = ["memory", "slow", "nowhere"]
    found = cost(work, LOAD, places, backlog_s=0.7, in_flight=3, away=[False, True, False])
    assert found.backlog_s == 0.7
    memory, slow, nowhere = 0.1 * 0.2, 1e-3 + 200 * 1000 * 1e-9 + 0.1 * 0.4, 0.1
    assert found.documents_s == pytest.approx(memory + slow + nowhere)  # it decodes meanwhile
    assert found.question_s == pytest.approx(2 * (2e-3 + 10e-3))
    assert found.decode_s == pytest.approx(20 * (1e-2 + 4 * 2e-3))
    assert found.away_s == pytest.approx(AWAY * 0.4)
    parts = found.documents_s + found.question_s + found.decode_s + found.away_s
    assert found.total_s == pytest.approx(0.7 + parts)


def test_what_takes_longer_to_load_is_computed() -> None:
    slow_disk = WorkerLoad(token_s=1e-4, token_bytes=1e6, tiers={"ssd": (0.0, 1e-8)})
    assert document_s(100, "slow", slow_disk) == pytest.approx(100 * 1e-4)
    assert document_s(100, "memory", slow_disk) == 0.0


def test_a_tier_that_was_never_read_has_an_assumed_speed() -> None:
    load = WorkerLoad(token_s=1.0, token_bytes=3e6)
    latency, byte_s = UNKNOWN_TIER
    assert document_s(10, "slow", load) == pytest.approx(latency + 10 * 3e6 * byte_s)


def test_a_kept_prompt_saves_what_it_covers_and_never_costs() -> None:
    work, places = Work([100, 100], 50, 0.0), ["nowhere", "nowhere"]
    fresh = cost(work, LOAD, places)  # type: ignore[arg-type]
    continued = cost(work, LOAD, places, reused=230)  # type: ignore[arg-type]
    assert continued.prefill_s == pytest.approx(2e-3 + 20e-3)
    held = cost(work, LOAD, ["memory", "memory"])
    assert cost(work, LOAD, ["memory", "memory"], reused=64) == held
    assert continued.total_s < fresh.total_s


def test_every_document_held_makes_it_cheaper_and_order_is_nothing() -> None:
    rng = random.Random(3)
    for _ in range(50):
        tokens = [rng.randrange(1, 500) for _ in range(3)]
        totals = {}
        for places in itertools.product(("memory", "slow", "nowhere"), repeat=3):
            totals[places] = cost(Work(tokens, 5, 1.0, 0.15), LOAD, places).total_s
            pairs = sorted(zip(tokens, places, strict=True))
            other = cost(
                Work([t for t, _ in pairs], 5, 1.0, 0.15), LOAD, [p for _, p in pairs]
            ).total_s
            assert other == pytest.approx(totals[places])
        for places, total in totals.items():
            for i, place in enumerate(places):
                if place != "memory":
                    assert totals[(*places[:i], "memory", *places[i + 1 :])] < total
