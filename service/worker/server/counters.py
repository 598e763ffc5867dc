"""What the worker says of itself: its counters, and how busy and how fast its engine is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kvstitch.kvstore import StoreStats, TierStats
from kvstitch.service import __version__
from kvstitch.service.messages.replies import Ready, WorkerLoad
from kvstitch.service.messages.requests import ChunkTokens, Precompute
from kvstitch.service.shared.metrics import Sample
from kvstitch.service.worker.engine.engine import Engine
from kvstitch.service.worker.loading.chunk_stream import stored_bytes
from kvstitch.service.worker.loading.planner import Planner
from kvstitch.service.worker.methods.bases.fusion import PromptShape
from kvstitch.service.worker.model.model_facts import full_prefill
from kvstitch.service.worker.prefix_cache import POOL
from kvstitch.service.worker.sequences.sequence import EngineSequence

# These exist at 0 from the start. Monitoring sees no increase in a counter that appears with its
# first failure, so an alert would notice only the second one.
FAILURES = ("corrupt", "refused", "locked", "timeout", "unavailable", "error")
ALERTED = (
    *((op, outcome) for op in ("read", "read_blocks") for outcome in FAILURES),
    *(("scan", outcome) for outcome in ("corrupt", "refused", "foreign")),
)


def tier_values(tier: TierStats) -> list[Sample]:
    """Return samples of one tier: operations, bytes and seconds, and its size."""
    name, usage = {"tier": tier.name}, tier.usage
    operations = sorted({**dict.fromkeys(ALERTED, 0), **tier.ops}.items())
    known = {
        "kvstitch_tier_used_bytes": usage.used_bytes,
        "kvstitch_tier_capacity_bytes": usage.capacity_bytes,
        "kvstitch_tier_entries": usage.entries,
        "kvstitch_tier_evictions_total": usage.evictions,
        "kvstitch_tier_servers": usage.servers or None,
        "kvstitch_tier_servers_down": usage.servers_down if usage.servers else None,
        "kvstitch_tier_healthy": float(tier.healthy),
        "kvstitch_tier_pending_deletes": tier.pending_deletes,
    }
    return [
        *_samples("kvstitch_tier_operations_total", ("op", "outcome"), operations, name),
        *_samples("kvstitch_tier_operation_seconds_total", ("op",), tier.seconds.items(), name),
        *_samples("kvstitch_tier_transferred_bytes_total", ("op",), tier.bytes.items(), name),
        *((metric, name, value) for metric, value in known.items() if value is not None),
    ]


def _samples(
    metric: str,
    labels: Sequence[str],
    counts: Iterable[tuple[Any, float]],
    others: Mapping[str, str] = MappingProxyType({}),
) -> list[Sample]:
    samples: list[Sample] = []
    for key, count in counts:
        keys = key if isinstance(key, tuple) else (key,)
        samples.append((metric, {**others, **dict(zip(labels, keys, strict=True))}, count))
    return samples


def store_values(stats: StoreStats) -> list[Sample]:
    """Return samples of the store: its tiers, keys and writes."""
    return [
        *(value for tier in stats.tiers for value in tier_values(tier)),
        ("kvstitch_store_new_keys_total", {}, stats.new_keys),
        ("kvstitch_store_already_present_total", {}, stats.already_present),
        ("kvstitch_store_dropped_writes_total", {}, stats.dropped_writes),
        ("kvstitch_store_pending_writes", {}, stats.pending_writes),
    ]


def own_values(ready: Ready, backlog_s: float) -> list[Sample]:
    """Return what the worker is, and how long a prompt that comes now would wait."""
    what = {"device": ready.model.device, "version": __version__}
    return [("kvstitch_worker_info", what, 1.0), ("kvstitch_backlog_seconds", {}, backlog_s)]


def engine_values(engine: Engine) -> list[Sample]:
    """Return samples of the engine: sequences, pool, decode steps, precompute, gate, planner."""
    scheduler, answering = engine.scheduler, engine.answering
    states = {
        "waiting": len(scheduler.waiting),
        "prefilling": len(scheduler.prefilling),
        "running": len(scheduler.running),
    }
    precomputed = engine.precompute_queue.counts
    return [
        *_samples("kvstitch_sequences", ("state",), states.items()),
        ("kvstitch_pool_free_ratio", {}, engine.pool_free_share),
        ("kvstitch_pool_kept_ratio", {}, engine.prefix_cache.share),
        ("kvstitch_continued_prompts_total", {"place": POOL}, engine.prefix_cache.continued),
        ("kvstitch_decode_steps_total", {}, answering.steps),
        *_samples("kvstitch_draft_tokens_total", ("outcome",), answering.drafts.items()),
        *_samples("kvstitch_precomputed_chunks_total", ("status",), precomputed.items()),
        ("kvstitch_shared_reads_total", {}, engine.loader.shared),
        *(engine.gate.values() if engine.gate is not None else ()),
        *(_planner_values(engine.planner) if engine.planner.deciding else ()),
    ]


def _planner_values(planner: Planner) -> list[Sample]:
    values = _samples("kvstitch_planner_segments_total", ("decision",), planner.counts.items())
    for tier, (latency, bandwidth) in planner.tiers.known().items():
        values.append(("kvstitch_tier_estimated_latency_seconds", {"tier": tier}, latency))
        values.append(("kvstitch_tier_estimated_bytes_per_second", {"tier": tier}, bandwidth))
    rate = 1 / planner.compute.slope
    return [*values, ("kvstitch_prefill_estimated_flops_per_second", {}, rate)]


SAMPLE_TOKENS = 512  # length of the prompt and chunk from which seconds and bytes per token follow
LOOKED_AT = 16  # sequences of a long queue; the others are assumed to be like these
DIGITS = 4  # of reported seconds, so that small changes are not worth a message


class LoadMeter:
    """Measures one engine, on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._token_flops = full_prefill(engine.decoder, SAMPLE_TOKENS) / SAMPLE_TOKENS
        chunk = ChunkTokens(0, [0] * SAMPLE_TOKENS)
        address = engine.admission.addresses(Precompute("", [], [chunk]))[1]
        assert address is not None
        self._token_bytes = stored_bytes(address) / SAMPLE_TOKENS

    def measure(self) -> WorkerLoad:
        engine, scheduler = self._engine, self._engine.scheduler
        compute, decode = engine.planner.compute, engine.decode_times
        token_s = self._token_flops * compute.slope
        backlog_s = 0.0
        queue = [*scheduler.prefilling, *scheduler.waiting]
        for sequence in queue[:LOOKED_AT]:
            rows = _rows(sequence, engine.decoder.layers)
            backlog_s += max(0.0, compute.overhead + rows * token_s - sequence.prefill.computed_s)
        backlog_s *= max(1.0, len(queue) / LOOKED_AT)
        if scheduler.running:  # decode steps take half of the time
            backlog_s *= 2.0
        return WorkerLoad(
            backlog_s=round(backlog_s, DIGITS),
            running=len(scheduler.running) + len(scheduler.prefilling),
            token_s=token_s,
            overhead_s=compute.overhead,
            step_s=decode.overhead,
            step_sequence_s=decode.slope,
            token_bytes=self._token_bytes,
            tiers={
                tier: (latency, 1 / bandwidth)
                for tier, (latency, bandwidth) in engine.planner.tiers.known().items()
            },
        )


def _rows(sequence: EngineSequence, layers: int) -> int:
    """Return rows that its prefill computes, as far as is known."""
    asked, segments = sequence.asked, sequence.loads.segments
    if sequence.reuse is not None:
        return asked.prompt_tokens - sequence.reuse.tokens
    if not segments:  # the method reads nothing, or the chunks have not been looked up
        return asked.prompt_tokens
    loads = [load for load in segments[1:] if load is not None]
    documents = [len(load.address.ids) for load in loads if load.usable]
    uncached = sum(asked.document_tokens) - sum(documents)
    question = len(asked.request.question)
    shape = PromptShape(asked.prompt_tokens, question, layers, uncached, documents)
    return question + uncached + sequence.fusion.recomputed_tokens(shape)
