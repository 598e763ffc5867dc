"""What /status says of each worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from service.gateway.prometheus import OWN_TIER, WorkerCollector

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def worker_reports(
    states: Iterable[DataclassInstance], reported: WorkerCollector
) -> list[dict[str, Any]]:
    """The workers' states, with what each has reported of itself; None for what is not known."""
    return [_report(asdict(state), number, reported) for number, state in enumerate(states)]


def _report(state: dict[str, Any], number: int, reported: WorkerCollector) -> dict[str, Any]:
    # In metrics one that runs by itself has its address, and one of our own its number.
    address = state.get("address") or ""
    worker = address.partition("://")[2] or str(number)
    info = next(iter(reported.reported(worker, "kvstitch_worker_info")), None)
    device, version = info or (None, None)
    backlog = reported.reported(worker, "kvstitch_backlog_seconds").get(())
    return {
        **state,
        "name": worker,
        "device": device,
        "version": version,
        "backlog_s": backlog,
        "memory": _memory(worker, reported),
    }


def _memory(worker: str, reported: WorkerCollector) -> dict[str, float] | None:
    """What its memory tier holds."""
    values = {
        name: reported.reported(worker, f"kvstitch_tier_{name}").get((OWN_TIER,))
        for name in ("entries", "used_bytes", "capacity_bytes")
    }
    known = {name: value for name, value in values.items() if value is not None}
    return known or None
