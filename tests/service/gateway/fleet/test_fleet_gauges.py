"""Workers by state, as a scrape shows them."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from service.gateway.fleet.fleet_gauges import watch_fleet
from service.gateway.fleet.worker_pool import WorkerPool
from service.gateway.prometheus import GatewayMetrics
from service.messages.replies import Holdings, WorkerLoad


@dataclass(frozen=True)
class State:
    reason: str | None
    draining: bool = False


@dataclass(frozen=True)
class StateOfOwn:
    """Of a process that the gateway started: it never drains."""

    pid: int
    reason: str | None


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kvstitch_{name}", labels)


def test_states_are_counted_when_they_are_asked_for() -> None:
    metrics, states = GatewayMetrics(), [State(None), State(None), State("it is starting")]
    pool = WorkerPool([], "cost", metrics, slower_tiers=False, kept_prompts=False)
    watch_fleet(metrics, pool, lambda: states)
    counts = {"ready": 2, "draining": 0, "not_ready": 1}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts
    states[:] = [State(None, draining=True), StateOfOwn(7, None)]  # type: ignore[list-item]
    counts = {"ready": 1, "draining": 1, "not_ready": 0}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts


def test_gaps_are_counted_and_beginnings_are_not() -> None:
    metrics = GatewayMetrics()
    pool = WorkerPool([], "cost", metrics, slower_tiers=False, kept_prompts=False)
    watch_fleet(metrics, pool, list)

    def tell(number: int, *, snapshot: bool = False) -> None:
        pool.directory.apply(0, Holdings(number, [], [], snapshot, 0, WorkerLoad()))

    tell(1)  # its snapshot is still to come
    tell(2, snapshot=True)
    tell(3)
    assert value(metrics.registry, "directory_gaps_total") == 0
    tell(5)
    tell(6)  # the same gap
    assert value(metrics.registry, "directory_gaps_total") == 1
