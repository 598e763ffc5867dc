"""GET /status: one look at the whole service. Reads, changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from service.messages import Stats
from service.records import GATE_STATES

if TYPE_CHECKING:
    from service.gateway.composition import Gateway


async def status(gateway: Gateway) -> dict[str, Any]:
    """State, model, corpus, load and tiers, as far as they are known now."""
    ready, stats = gateway.worker.ready, gateway.worker.stats
    reason = gateway.not_ready()
    fmt = gateway.prompts.format
    corpus: dict[str, Any] | None = None
    if gateway.retriever.started:
        corpus = {**asdict(await gateway.retriever.counts()), "jobs": await gateway.corpus.states()}
    return {
        "state": "ready" if reason is None else "not ready",
        "reason": reason,
        "model": None if ready is None else {**asdict(ready.model), "id": gateway.prompts.model},
        "prompt": {
            "chunk_tokens": fmt.chunk_tokens,
            "top_k": fmt.top_k,
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
        "gate": None if stats is None else _gate(stats),
        "tiers": gateway.metrics.worker.tiers(),
    }


def _gate(stats: Stats) -> dict[str, str]:
    """Fusion methods that were asked for since the start, and how far the gate trusts them; none
    where there is no gate."""
    return {
        labels["method"]: GATE_STATES[int(value)]
        for name, labels, value in stats.values
        if name == "kvstitch_gate_state"
    }
