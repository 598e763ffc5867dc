"""The cost of a request at a worker."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from kvstitch.service.gateway.fleet.routing.cost import AWAY, UNKNOWN_TIER, Place
from kvstitch.service.messages.replies import WorkerLoad
from tests.service.gateway.fleet.routing.one_worker import cost, work

LOAD = WorkerLoad(
    token_s=1e-3,
    overhead_s=2e-3,
    step_s=1e-2,
    step_sequence_s=2e-3,
    token_bytes=1000.0,
    tiers={"ssd": (1e-3, 1e-9), "redis": (1e-2, 1e-8)},
)


def test_the_parts_of_the_formula() -> None:
    asked = work([100, 200, 50], 10, 20.0, repair=0.1)
    places: list[Place] = ["memory", "slow", "nowhere"]
    found = cost(asked, LOAD, places, backlog_s=0.7, in_flight=3, away=[False, True, False])
    assert found.backlog_s == 0.7
    memory, slow, nowhere = 0.1 * 0.2, 1e-3 + 200 * 1000 * 1e-9 + 0.1 * 0.4, 0.1
    question = 2 * (2e-3 + 10e-3)  # it decodes meanwhile
    assert found.prefill_s == pytest.approx(memory + slow + nowhere + question)
    assert found.decode_s == pytest.approx(20 * (1e-2 + 4 * 2e-3))
    assert found.away_s == pytest.approx(AWAY * 0.4)
    parts = found.prefill_s + found.decode_s + found.away_s
    assert found.total_s == pytest.approx(0.7 + parts)


def test_what_takes_longer_to_load_is_computed() -> None:
    slow_disk = WorkerLoad(token_s=1e-4, token_bytes=1e6, tiers={"ssd": (0.0, 1e-8)})
    slow_disk = replace(slow_disk, overhead_s=0.0)
    assert cost(work([100], 0), slow_disk, ["slow"]).prefill_s == pytest.approx(100 * 1e-4)
    assert cost(work([100], 0), slow_disk, ["memory"]).prefill_s == 0.0


def test_a_tier_that_was_never_read_has_an_assumed_speed() -> None:
    load = WorkerLoad(token_s=1.0, overhead_s=0.0, token_bytes=3e6)
    latency, byte_s = UNKNOWN_TIER
    assert cost(work([10], 0), load, ["slow"]).prefill_s == pytest.approx(
        latency + 10 * 3e6 * byte_s
    )


def test_a_kept_prompt_saves_what_it_covers_and_never_costs() -> None:
    asked = work([100, 100], 50)
    places: list[Place] = ["nowhere", "nowhere"]
    fresh = cost(asked, LOAD, places)
    continued = cost(asked, LOAD, places, reused=230)
    assert continued.prefill_s == pytest.approx(2e-3 + 20e-3)
    held = cost(asked, LOAD, ["memory", "memory"])
    assert cost(asked, LOAD, ["memory", "memory"], reused=64) == held
    assert continued.total_s < fresh.total_s


PLACES: tuple[Place, ...] = ("memory", "slow", "nowhere")


def test_every_document_held_makes_it_cheaper_and_order_is_nothing() -> None:
    rng = random.Random(3)
    for _ in range(50):
        tokens = [rng.randrange(1, 500) for _ in range(3)]
        totals = {}
        for places in itertools.product(PLACES, repeat=3):
            totals[places] = cost(work(tokens, 5, 1.0, 0.15), LOAD, places).total_s
            pairs = sorted(zip(tokens, places, strict=True))
            other = cost(
                work([t for t, _ in pairs], 5, 1.0, 0.15), LOAD, [p for _, p in pairs]
            ).total_s
            assert other == pytest.approx(totals[places])
        for places, total in totals.items():
            for i, place in enumerate(places):
                if place != "memory":
                    assert totals[(*places[:i], "memory", *places[i + 1 :])] < total
