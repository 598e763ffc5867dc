"""The worker's report and the gateway's clock, as response and as metrics: the same numbers.

Knows no HTTP and no socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retriever import Passage
from service.gateway.prometheus import GatewayMetrics
from service.gateway.schemas import (
    CacheDocument,
    CacheReport,
    CacheSegment,
    Citation,
    PromptTokensDetails,
    Timing,
    Usage,
)
from service.gateway.schemas.generate import GateNote as GateNoteOut
from service.messages import Method, Report, SegmentReport
from service.metrics import PROMPT_SOURCES, STAGES, TIERS
from service.records import GateNote


def citations(passages: Sequence[Passage], *, with_text: bool) -> list[Citation]:
    return [
        Citation(
            index=index,
            doc_id=passage.chunk.doc_id,
            chunk_id=passage.chunk.chunk_id,
            title=passage.chunk.title,
            char_start=passage.chunk.char_start,
            char_end=passage.chunk.char_end,
            score=passage.score,
            dense_rank=passage.dense_rank,
            dense_score=passage.dense_score,
            sparse_rank=passage.sparse_rank,
            sparse_score=passage.sparse_score,
            rerank_score=passage.rerank_score,
            text=passage.chunk.text if with_text else None,
        )
        for index, passage in enumerate(passages, 1)
    ]


def method(method: Method) -> dict[str, object]:
    """As clients write it."""
    return {"method": method.name, **method.parameters}


def usage(report: Report) -> Usage:
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        total_tokens=report.prompt_tokens + report.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=report.cached_tokens),
    )


def cache(report: Report, passages: Sequence[Passage]) -> CacheReport:
    doc_ids = {passage.chunk.chunk_id: passage.chunk.doc_id for passage in passages}
    return CacheReport(
        system=CacheSegment(**_segment(report.system)),
        documents=[
            CacheDocument(doc_id=doc_ids[d.chunk_id], chunk_id=d.chunk_id, **_segment(d))
            for d in report.documents
        ],
        rows_per_layer=report.rows_per_layer,
        kept_per_layer=report.kept_per_layer,
        coverage=report.coverage,
        flops=report.flops,
        full_prefill_flops=report.full_prefill_flops,
        kept_ratio=report.kept_ratio,
        recomputed_ratio=report.recomputed_ratio,
        recomputed_tokens=report.recomputed_tokens,
        ratio=report.ratio,
        gate=_gate(report.gate),
    )


def timing(ttft_s: float, total_s: float, tokens: int) -> Timing:
    """TPOT = (end to end - TTFT) / (tokens - 1)."""
    tpot_s = (total_s - ttft_s) / (tokens - 1) if tokens > 1 else None
    return Timing(ttft_s=ttft_s, tpot_s=tpot_s, total_s=total_s)


def server_timing(stages: Mapping[str, float], total_s: float | None = None) -> str:
    """The Server-Timing header: milliseconds per stage, as browsers and proxies show them."""
    times = {**stages, **({} if total_s is None else {"total": total_s})}
    return ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in times.items())


def observe(
    metrics: GatewayMetrics,
    times: Timing,
    stages: dict[str, float],
    report: Report,
    *,
    evicted: bool,
) -> None:
    """Count a finished answer; `evicted`: with an eviction method."""
    metrics.ttft.observe(times.ttft_s)
    metrics.e2e.observe(times.total_s)
    if times.tpot_s is not None:
        metrics.tpot.observe(times.tpot_s)
    for stage in STAGES:
        if stage in stages:
            metrics.stage.labels(stage).observe(stages[stage])
    metrics.completion_tokens.inc(report.completion_tokens)
    for source, tokens in sources(report).items():
        metrics.prompt_tokens.labels(source).inc(tokens)
    for segment in (report.system, *report.documents):
        metrics.segments.labels(_decision(segment)).inc()
        if segment.tier in TIERS:
            metrics.kv_read_bytes.labels(segment.tier).inc(segment.bytes)
            metrics.kv_stored_bytes.labels(segment.tier).inc(segment.stored_bytes)
    metrics.flops.inc(report.flops)
    metrics.full_prefill_flops.inc(report.full_prefill_flops)
    if evicted:
        metrics.coverage_ratio.observe(report.coverage)
    if report.documents:
        metrics.kept_ratio.observe(report.kept_ratio)
        metrics.recomputed_ratio.observe(report.recomputed_ratio)


def sources(report: Report) -> dict[str, int]:
    """Prompt tokens by where their KV came from; they add up to the prompt."""
    out = dict.fromkeys(PROMPT_SOURCES, 0)
    segments = [report.system, *report.documents]
    for segment in segments:
        if segment.tier in TIERS:
            out[segment.tier] += max(0, segment.tokens - segment.rows_recomputed)
            out["recomputed"] += segment.rows_recomputed
        else:
            out["cold"] += segment.tokens
    out["question"] = max(0, report.prompt_tokens - sum(s.tokens for s in segments))
    return out


def _decision(segment: SegmentReport) -> str:
    """One of metrics.DECISIONS."""
    if segment.plan == "recompute":
        return "recompute"
    return "load" if segment.tier in TIERS else "miss"


def _gate(note: GateNote | None) -> GateNoteOut | None:
    if note is None:
        return None
    return GateNoteOut(state=note.state, used=method(note.used), why=note.why)


def _segment(segment: SegmentReport) -> dict[str, Any]:
    return {
        "tier": segment.tier,
        "bytes": segment.bytes,
        "stored_bytes": segment.stored_bytes,
        "tokens": segment.tokens,
        "rows_recomputed": segment.rows_recomputed,
        "load_s": segment.load_s,
        "problems": segment.problems,
        "plan": segment.plan,
        "why": segment.why,
    }
