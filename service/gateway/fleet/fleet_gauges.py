"""What the metrics say of all workers together, asked at every scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from service.gateway.fleet.worker_pool import WorkerPool
from service.gateway.prometheus import GatewayMetrics
from service.gateway.worker_client.protocol import Worker
from service.shared.metrics import WORKER_STATES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def watch_fleet(
    metrics: GatewayMetrics, worker: Worker, states: Callable[[], Iterable[DataclassInstance]]
) -> None:
    """Count the workers by state, and what the directory missed.

    Args:
        states: Asked for what is known of every worker: a `reason` for which it is not ready, or
            None, and whether it is `draining`, where it can.
    """
    for state in WORKER_STATES:
        metrics.workers.labels(state).set_function(partial(_count, states, state))
    if isinstance(worker, WorkerPool):
        worker.directory.on_gap = metrics.directory_gaps.inc


def _count(states: Callable[[], Iterable[DataclassInstance]], state: str) -> float:
    return Counter(_state_of(**asdict(each)) for each in states())[state]


def _state_of(*, reason: str | None, draining: bool = False, **_: object) -> str:
    return "draining" if draining else "ready" if reason is None else "not_ready"
