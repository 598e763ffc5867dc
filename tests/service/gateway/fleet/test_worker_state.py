"""Workers by state, as a scrape shows them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from service.gateway.fleet.member import WorkerState, count_by_state
from service.gateway.fleet.worker_pool import WorkerPool
from service.gateway.prometheus import GatewayMetrics
from service.messages.replies import Holdings, WorkerLoad


def state(reason: str | None, *, draining: bool = False) -> WorkerState:
    return WorkerState(7, reason, None, None, None, draining=draining)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kvstitch_{name}", labels)


def test_states_are_counted_when_they_are_asked_for() -> None:
    metrics, states = GatewayMetrics(), [state(None), state(None), state("it is starting")]
    count_by_state(metrics, lambda: states)
    counts = {"ready": 2, "draining": 0, "not_ready": 1}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts
    states[:] = [state(None, draining=True), state(None)]
    counts = {"ready": 1, "draining": 1, "not_ready": 0}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts


def test_gaps_are_counted_and_beginnings_are_not() -> None:
    metrics = GatewayMetrics()
    pool = WorkerPool([], "cost", metrics, slower_tiers=False, prefix_cache=False)

    def tell(number: int, *, snapshot: bool = False) -> None:
        pool.directory.apply(0, Holdings(number, [], [], snapshot, 0, WorkerLoad()))

    tell(1)  # its snapshot is still to come
    tell(2, snapshot=True)
    tell(3)
    assert value(metrics.registry, "directory_gaps_total") == 0
    tell(5)
    tell(6)  # the same gap
    assert value(metrics.registry, "directory_gaps_total") == 1
