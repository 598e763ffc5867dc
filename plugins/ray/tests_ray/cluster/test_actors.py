"""Names and addresses of actors, and reasons for no place."""

from __future__ import annotations

from dataclasses import asdict

from kvstitch_ray.cluster.ray_cluster import Machine, why_no_place
from kvstitch_ray.cluster.records import ActorState, Phase, lowest_free, number_of, workers_among
from kvstitch_ray.cluster.watch import WorkerAddresses


def test_workers_are_sorted_by_number_and_others_are_left_out() -> None:
    names = ["kvstitch-worker-10", "other", "kvstitch-worker-2", "kvstitch-worker-x"]
    assert workers_among(names) == ["kvstitch-worker-2", "kvstitch-worker-10"]
    assert number_of("other-1") is None


def test_a_number_that_is_free_again_is_taken_first() -> None:
    assert lowest_free([]) == 1
    assert lowest_free(["kvstitch-worker-1", "kvstitch-worker-3"]) == 2


DEMAND = {"CPU": 1.0, "GPU": 1.0}


def test_a_demand_that_no_machine_meets_names_what_each_has() -> None:
    machines = [Machine("a", {"CPU": 8}), Machine("b", {"CPU": 0, "GPU": 2})]
    said = why_no_place(DEMAND, machines, {"CPU": 8, "GPU": 2})
    assert "no machine is so large: a has 8 CPU, 0 GPU; b has 0 CPU, 2 GPU" in said


def test_a_demand_that_is_taken_names_the_resource() -> None:
    said = why_no_place(DEMAND, [Machine("a", {"CPU": 8, "GPU": 1})], {"CPU": 7.0})
    assert "of GPU too little is free (7 CPU, 0 GPU)" in said


def state(number: int, phase: Phase, port: int = 1) -> ActorState:
    return ActorState(f"w{number}", phase, address=f"tcp://a:{port}" if port else "")


def test_a_worker_that_drains_or_restarts_keeps_its_address_until_it_is_gone() -> None:
    workers = WorkerAddresses()
    for phase in ("loading", "ready", "restarting", "draining"):
        workers.update([state(1, phase)])
        assert workers.addresses == ["tcp://a:1"]
    workers.update([state(1, "ended", 0)])
    assert workers.addresses == []


def test_an_actor_on_another_machine_has_another_address() -> None:
    workers = WorkerAddresses()
    workers.update([state(1, "ready", 1)])
    workers.update([state(1, "loading", 2)])
    assert workers.addresses == ["tcp://a:2"]


def test_only_actors_that_are_there_count_and_silence_is_no_reason_to_go() -> None:
    workers = WorkerAddresses()
    workers.update([state(1, "ready", 1), state(2, "ready", 2)])
    assert not workers.unknown
    workers.update([state(1, "waiting", 0), state(2, "waiting", 0)])
    assert workers.addresses == ["tcp://a:1", "tcp://a:2"] and not workers.unknown
    workers.update([state(2, "ready", 2), state(3, "waiting", 0)])
    assert workers.addresses == ["tcp://a:2"] and workers.unknown


def test_states_of_other_versions_are_understood() -> None:
    told = {"name": "w1", "phase": "meditating", "address": "tcp://a:1", "mood": "good"}
    assert ActorState.of(told).phase == "loading"
    assert ActorState.of(asdict(state(1, "ready"))) == state(1, "ready")
