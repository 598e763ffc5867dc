"""Time in the simulator is what can be reckoned by hand; decisions are the router's."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.fleet import scale
from benchmarks.fleet.simulator import Fleet, Outcome, Request, Simulation
from service.gateway.fleet.routing.router import Policy
from service.messages.replies import WorkerLoad

LOAD = WorkerLoad(
    token_s=1e-3, overhead_s=0.01, step_s=0.01, step_sequence_s=0.001, token_bytes=1000.0,
    tiers={"ssd": (0.001, 1e-8)},
)  # fmt: skip
ONE = Fleet(
    1, LOAD, chunk=100, question=20, repair=0.1, memory=800, slower_tiers=False, policy="cost"
)


def run(fleet: Fleet, *requests: Request) -> Outcome:
    return Simulation(fleet).run(requests)


def test_a_prompt_alone_takes_what_its_tokens_take() -> None:
    done = run(ONE, Request(0.0, [1, 2], 11))
    assert done.ttft_s == [pytest.approx(0.01 + 0.02 + 0.2)]
    assert done.tpot_s == [pytest.approx(0.011)]
    assert done.places == {"nowhere": 2}
    assert done.busy_s == pytest.approx(done.end) == pytest.approx(0.23 + 10 * 0.011)


def test_what_is_in_memory_is_repaired_only() -> None:
    done = run(ONE, Request(0.0, [1, 2], 1), Request(1.0, [2, 1], 1))
    assert done.ttft_s[1] == pytest.approx(0.03 + 0.1 * 0.22)
    assert run(ONE, Request(0.0, [1], 1), Request(1.0, [1], 1)).ttft_s[1] == pytest.approx(0.03)
    # Two of three are computed; what may be repaired of the third is a share of the whole prompt.
    mixed = run(replace(ONE, repair=0.2), Request(0.0, [1], 1), Request(1.0, [2, 3, 1], 1))
    assert mixed.ttft_s[1] == pytest.approx(0.03 + 0.2 + 0.2 * 0.32)
    assert done.local_hit_rate == 0.5


def test_memory_gives_up_what_was_used_longest_ago() -> None:
    small = replace(ONE, memory=200)
    arrivals = [[1, 2], [3], [1], [3]]
    done = run(small, *(Request(float(at), ids, 1) for at, ids in enumerate(arrivals)))
    assert done.places == {"nowhere": 4, "memory": 1}
    stored = run(replace(small, slower_tiers=True), *(
        Request(float(at), ids, 1) for at, ids in enumerate(arrivals)
    ))  # fmt: skip
    assert stored.places == {"nowhere": 3, "slow": 1, "memory": 1}
    # Read: 0.001 s and 100 kB. The first document of a prompt needs no repair.
    assert stored.ttft_s[2] == pytest.approx(0.03 + 0.001 + 100_000 * 1e-8)


def test_prefill_beside_a_decoding_sequence_takes_twice_as_long() -> None:
    done = run(ONE, Request(0.0, [1], 1000), Request(1.0, [2], 1))
    assert done.ttft_s[1] == pytest.approx(2 * (0.03 + 0.1))


def test_requests_of_a_queue_start_one_after_the_other() -> None:
    done = run(ONE, Request(0.0, [1], 1), Request(0.0, [2], 1), Request(0.0, [3], 1))
    assert done.ttft_s == [pytest.approx(n * 0.13) for n in (1, 2, 3)]


def test_two_busy_workers_on_one_core_take_twice_as_long() -> None:
    apart = replace(ONE, workers=2, policy="round_robin")
    requests = [Request(0.0, [1], 1), Request(0.0, [2], 1), Request(1.0, [3], 1)]
    assert run(apart, *requests).ttft_s == [pytest.approx(0.13)] * 3
    assert run(replace(apart, cores=2), *requests).ttft_s == [pytest.approx(0.13)] * 3
    shared = run(replace(apart, cores=1), *requests)
    assert shared.ttft_s == [pytest.approx(seconds) for seconds in (0.26, 0.26, 0.13)]


def test_a_core_that_becomes_free_speeds_up_what_still_runs() -> None:
    shared = replace(ONE, workers=2, policy="round_robin", cores=1)
    done = run(shared, Request(0.0, [1], 1), Request(0.0, [2, 3], 1))
    # Both at half speed until the first is done; then 0.1 s alone.
    assert done.ttft_s == [pytest.approx(0.26), pytest.approx(0.36)]


def test_a_directory_that_is_wrong_costs_time_and_no_answer() -> None:
    source = random.Random(3)
    fleet = replace(ONE, workers=4, memory=1200)
    requests = [
        Request(at / 6, source.sample(range(40), 4), source.randrange(1, 20)) for at in range(300)
    ]
    true, untrue = (run(replace(fleet, untrue=share), *requests) for share in (0.0, 0.8))
    assert len(untrue.ttft_s) == len(untrue.tpot_s) == 300
    assert sum(untrue.places.values()) == sum(true.places.values()) == 1200
    assert untrue.local_hit_rate < true.local_hit_rate
    assert sum(untrue.ttft_s) > sum(true.ttft_s)


@pytest.mark.parametrize("policy", ["cost", "round_robin", "least_load", "longest_prefix"])
def test_every_request_ends_once(policy: Policy) -> None:
    source = random.Random(1)
    fleet = replace(ONE, workers=3, policy=policy, slower_tiers=True)
    requests = [
        Request(at / 20, source.sample(range(40), 3), source.randrange(1, 20)) for at in range(200)
    ]
    done = run(fleet, *requests)
    assert len(done.ttft_s) == len(done.tpot_s) == 200
    assert sum(done.places.values()) == 600
    assert done.busy_s <= 3 * done.end + 1e-6


def test_our_routing_finds_topics_again() -> None:
    """Six topics of four documents; a worker's memory has three of them."""

    def hits(policy: Policy) -> float:
        source = random.Random(2)
        fleet = replace(ONE, workers=3, memory=1200, policy=policy)
        topics = [[4 * topic + n for n in range(4)] for topic in range(6)]
        requests = [
            Request(float(at), source.sample(topics[source.randrange(6)], 4), 1)
            for at in range(300)
        ]
        return run(fleet, *requests).local_hit_rate

    assert hits("cost") > 0.9 > 0.6 > hits("round_robin")


def test_scales_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "scale.json"
    given = ["--workers", "2", "--per-worker", "20", "--chunks", "200000", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["scale", *given])
    scale.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["policy"] for row in rows] == 2 * list(get_args(Policy))
    assert all(0 <= row["local_hit_rate"] <= 1 and row["busy"] <= 1 for row in rows)
