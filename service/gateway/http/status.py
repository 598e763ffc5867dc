"""GET /status: the state of the whole service at a glance."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from service.gateway.http.services import GatewayServices
from service.gateway.http.worker_report import worker_reports
from service.messages.replies import Stats
from service.messages.reports import GATE_STATES


async def status(gateway: GatewayServices) -> dict[str, Any]:
    """State, model, corpus, load and tiers; None for what is not known yet."""
    ready, stats = gateway.worker.ready, gateway.worker.stats
    reason = gateway.not_ready()
    fmt = gateway.prompts.format
    corpus: dict[str, Any] | None = None
    if gateway.retriever.started:
        counts = await gateway.retriever.run(gateway.retriever.catalog.counts)
        corpus = {
            **asdict(counts),
            "jobs": await gateway.corpus.jobs.states(),
            "complete": gateway.corpus.complete,
        }
    return {
        "state": "ready" if reason is None else "not ready",
        "reason": reason or await asyncio.to_thread(gateway.disk.reason),
        "model": None if ready is None else {**asdict(ready.model), "id": gateway.prompts.model},
        "adapters": [] if ready is None else [asdict(each) for each in ready.adapters],
        "prompt": {
            "chunk_tokens": fmt.chunk_tokens,
            "top_k": fmt.top_k,
            "passage_order": fmt.passage_order,
            "max_tokens": fmt.max_tokens,
            "prefix_mode": fmt.prefix_mode,
        },
        "corpus": corpus,
        "in_flight": gateway.limiter.in_flight,
        "worker": {
            "pid": gateway.worker_pid,
            "pool_tokens": None if ready is None else ready.pool_tokens,
            "pool_free": None if stats is None else stats.pool_free,
            "running": None if stats is None else stats.running,
            "waiting": None if stats is None else stats.waiting,
        },
        "workers": worker_reports(gateway.worker_states(), gateway.metrics.worker),
        "gate": None if stats is None else _gate_states(stats),
        "tiers": gateway.metrics.worker.tiers(),
    }


def _gate_states(stats: Stats) -> dict[str, str]:
    """Fusion methods used since the start, and how far the correctness gate trusts them.

    Empty where the gate is off.
    """
    return {
        labels["method"]: GATE_STATES[int(value)]
        for name, labels, value in stats.values
        if name == "kvstitch_gate_state"
    }
