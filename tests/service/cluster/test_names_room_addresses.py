"""Names of actors, reasons for no place, free ports."""

from __future__ import annotations

import socket

import pytest

from service.cluster.addresses import free_address
from service.cluster.names import lowest_free, number_of, workers_among
from service.cluster.room import Machine, why_no_place
from service.errors import InvalidSetting


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


def test_ports_are_taken_in_their_range_and_again_after_a_restart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSetting, match=f"all ports {port}-{port} .*--ports"):
            free_address("127.0.0.1", (port, port))
        any_port = free_address("127.0.0.1", None, f"tcp://127.0.0.1:{port}")
        assert any_port != f"tcp://127.0.0.1:{port}"
    assert free_address("127.0.0.1", (port, port)) == f"tcp://127.0.0.1:{port}"
    assert free_address("127.0.0.1", None, any_port) == any_port
