"""Counts a finished answer in the metrics: the same numbers that its response holds."""

from __future__ import annotations

from collections.abc import Mapping

from service.gateway.prometheus import GatewayMetrics
from service.gateway.schemas.answer import Timing
from service.messages.reports import Report, SegmentReport
from service.shared.metrics import PROMPT_SOURCES, STAGES, TIERS


def observe_answer(
    metrics: GatewayMetrics,
    timing: Timing,
    stages: Mapping[str, float],
    report: Report,
    *,
    evicted: bool,
) -> None:
    """Count an answer.

    Args:
        metrics: Where it is counted.
        timing: Of the answer.
        stages: Seconds per stage.
        report: From the worker.
        evicted: Whether an eviction method was used.
    """
    metrics.ttft.observe(timing.ttft_s)
    metrics.e2e.observe(timing.total_s)
    if timing.tpot_s is not None:
        metrics.tpot.observe(timing.tpot_s)
    for stage in STAGES:
        if stage in stages:
            metrics.stage.labels(stage).observe(stages[stage])
    metrics.completion_tokens.inc(report.completion_tokens)
    for source, tokens in tokens_by_source(report).items():
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


def tokens_by_source(report: Report) -> dict[str, int]:
    """Prompt tokens by where their KV came from; they add up to the prompt."""
    out = dict.fromkeys(PROMPT_SOURCES, 0)
    segments = [report.system, *report.documents]
    earlier = report.reused_from or "pool"
    for segment in segments:
        out[earlier] += segment.reused
        if segment.tier in TIERS:
            out[segment.tier] += max(0, segment.tokens - segment.rows_recomputed)
            out["recomputed"] += segment.rows_recomputed
        else:
            out["cold"] += segment.tokens - segment.reused
    of_question = report.reused_tokens - sum(segment.reused for segment in segments)
    out[earlier] += of_question
    question = report.prompt_tokens - sum(s.tokens for s in segments) - of_question
    out["question"] = max(0, question)
    return out


def _decision(segment: SegmentReport) -> str:
    """One of `service.shared.metrics.DECISIONS`."""
    if segment.plan == "recompute":
        return "recompute"
    if segment.tokens and segment.reused == segment.tokens:
        return "reuse"
    return "load" if segment.tier in TIERS else "miss"
