"""The worker's counters as samples of the metrics that `service.shared.metrics` declares."""

from __future__ import annotations

from kvstore.store_stats import StoreStats, TierStats
from service import __version__
from service.messages.replies import Ready
from service.shared.metrics import Sample
from service.worker.engine.engine import Engine
from service.worker.planner.planner import Planner

# These exist at 0 from the start. Monitoring sees no increase in a counter that appears with its
# first failure, so an alert would notice only the second one.
FAILURES = ("corrupt", "refused", "timeout", "unavailable", "error")
ALERTED = (
    *((op, outcome) for op in ("read", "read_blocks") for outcome in FAILURES),
    *(("scan", outcome) for outcome in ("corrupt", "refused", "foreign")),
)


def tier_values(tier: TierStats) -> list[Sample]:
    """Samples of one tier: operations, bytes and seconds, and its size."""
    name = {"tier": tier.name}
    values: list[Sample] = [
        ("kvstitch_tier_operations_total", {**name, "op": op, "outcome": outcome}, count)
        for (op, outcome), count in sorted({**dict.fromkeys(ALERTED, 0), **tier.ops}.items())
    ]
    for metric, amounts in (
        ("kvstitch_tier_operation_seconds_total", tier.seconds),
        ("kvstitch_tier_transferred_bytes_total", tier.bytes),
    ):
        values.extend((metric, {**name, "op": op}, n) for op, n in amounts.items())
    for metric, known in (
        ("kvstitch_tier_used_bytes", tier.usage.used_bytes),
        ("kvstitch_tier_capacity_bytes", tier.usage.capacity_bytes),
        ("kvstitch_tier_entries", tier.usage.entries),
        ("kvstitch_tier_evictions_total", tier.usage.evictions),
    ):
        if known is not None:
            values.append((metric, name, known))
    if tier.usage.servers:
        values.append(("kvstitch_tier_servers", name, tier.usage.servers))
        values.append(("kvstitch_tier_servers_down", name, tier.usage.servers_down))
    values.append(("kvstitch_tier_healthy", name, float(tier.healthy)))
    values.append(("kvstitch_tier_pending_deletes", name, tier.pending_deletes))
    return values


def store_values(stats: StoreStats) -> list[Sample]:
    """Samples of the store: its tiers, keys and writes."""
    values = [value for tier in stats.tiers for value in tier_values(tier)]
    values.append(("kvstitch_store_new_keys_total", {}, stats.new_keys))
    values.append(("kvstitch_store_already_present_total", {}, stats.already_present))
    values.append(("kvstitch_store_dropped_writes_total", {}, stats.dropped_writes))
    values.append(("kvstitch_store_pending_writes", {}, stats.pending_writes))
    return values


def own_values(ready: Ready, backlog_s: float) -> list[Sample]:
    """Samples of the worker itself: what it is, and how long a prompt that comes now would wait."""
    what = {"device": ready.model.device, "version": __version__}
    return [("kvstitch_worker_info", what, 1.0), ("kvstitch_backlog_seconds", {}, backlog_s)]


def engine_values(engine: Engine) -> list[Sample]:
    """Samples of the engine: sequences by state, pool, decode steps, precompute, gate, planner."""
    scheduler = engine.scheduler
    states = {
        "waiting": len(scheduler.waiting),
        "prefilling": len(scheduler.prefilling),
        "running": len(scheduler.running),
    }
    values: list[Sample] = [
        ("kvstitch_sequences", {"state": state}, count) for state, count in states.items()
    ]
    values.append(("kvstitch_pool_free_ratio", {}, engine.pool_free_share))
    values.append(("kvstitch_pool_kept_ratio", {}, engine.prefix_cache.kept_share))
    values.extend(
        ("kvstitch_continued_prompts_total", {"place": place}, count)
        for place, count in engine.prefix_cache.counts.items()
    )
    if engine.prompts is not None:
        values.extend(
            ("kvstitch_stored_prompts_total", {"outcome": outcome}, count)
            for outcome, count in engine.prompts.counts.items()
        )
    values.append(("kvstitch_decode_steps_total", {}, engine.answering.steps))
    values.extend(
        ("kvstitch_draft_tokens_total", {"outcome": outcome}, count)
        for outcome, count in engine.answering.drafts.items()
    )
    values.extend(
        ("kvstitch_precomputed_chunks_total", {"status": status}, count)
        for status, count in engine.precompute_queue.counts.items()
    )
    values.append(("kvstitch_shared_reads_total", {}, engine.streams.shared))
    if engine.gate is not None:
        values.extend(engine.gate.values())
    return values + (_planner_values(engine.planner) if engine.planner is not None else [])


def _planner_values(planner: Planner) -> list[Sample]:
    values: list[Sample] = [
        ("kvstitch_planner_segments_total", {"decision": decision}, count)
        for decision, count in planner.counts.items()
    ]
    for tier, (latency, bandwidth) in planner.tiers.known().items():
        values.append(("kvstitch_tier_estimated_latency_seconds", {"tier": tier}, latency))
        values.append(("kvstitch_tier_estimated_bytes_per_second", {"tier": tier}, bandwidth))
    rate = 1 / planner.compute.flop_s
    values.append(("kvstitch_prefill_estimated_flops_per_second", {}, rate))
    return values
