"""Parts of a response, from the worker's report and the gateway's clock; metrics of the same."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvstitch.records.answers import (
    CacheDocument,
    CacheReport,
    CacheSegment,
    DocumentForecast,
    Explanation,
    GateNote,
    PromptTokensDetails,
    SegmentForecastOut,
    SegmentTokens,
    Source,
    Timing,
    TokenReport,
    TokenRunOut,
    Usage,
)
from kvstitch.records.base import filled
from kvstitch.service.gateway.answers.validation import AnswerPlan
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.prompts.detokenizer import Decode, Detokenizer
from kvstitch.service.messages.reports import (
    Forecast,
    Report,
    SegmentReport,
    SegmentTrace,
    TokenRun,
    TokenTrace,
)
from kvstitch.service.messages.requests import Generate, Method
from kvstitch.service.plugins import tiers
from kvstitch.service.shared.metrics import PROMPT_SOURCES, STAGES, TIERS

NOT_ASKED = Report(
    prompt_tokens=0, completion_tokens=0, cached_tokens=0, recomputed_tokens=0,
    system=SegmentReport(
        tier="cold", bytes=0, stored_bytes=0, tokens=0, rows_recomputed=0, load_s=0.0, problems=[],
        plan="", why="", chunk_id=-1,
    ),
    documents=[], rows_per_layer=[], kept_per_layer=[], coverage=1.0, flops=0.0,
    full_prefill_flops=0.0, kept_ratio=1.0, recomputed_ratio=0.0, stages={}, decode_steps=0,
)  # fmt: skip
"""The report of an answer for which no model was asked."""


def method_fields(method: Method) -> dict[str, object]:
    """Return a method as clients write it: {"method": name, parameter: value, …}."""
    return {"method": method.name, **method.parameters}


def usage(report: Report) -> Usage:
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        total_tokens=report.prompt_tokens + report.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=report.cached_tokens),
    )


def cache_report(report: Report, names: Mapping[int, dict[str, Any]]) -> CacheReport:
    """Return what happened to the KV of every segment."""
    gate = report.gate
    return filled(
        CacheReport,
        report,
        system=filled(CacheSegment, report.system),
        documents=[
            filled(CacheDocument, segment, **names[segment.chunk_id])
            for segment in report.documents
        ],
        gate=None if gate is None else filled(GateNote, gate, used=method_fields(gate.used)),
    )


def explanation(model: str, plan: AnswerPlan, forecast: Forecast) -> Explanation:
    """Join what the gateway has prepared with the worker's forecast for it."""
    generate, names = plan.generate, plan.names
    gateway_s = sum(plan.stages.values())
    eviction = generate.eviction
    return filled(
        Explanation,
        forecast,
        id=generate.id,
        model=model,
        adapter=generate.lora or None,
        citations=plan.citations,
        found=bool(plan.passages),
        relevance=plan.relevance,
        retrieval=plan.retrieval,
        max_tokens=generate.sampling.max_tokens,
        system=filled(SegmentForecastOut, forecast.system),
        documents=[
            filled(DocumentForecast, each, **names[each.chunk_id]) for each in forecast.documents
        ],
        expected_ttft_s=gateway_s + forecast.first_token_s,
        full_prefill_ttft_s=gateway_s + forecast.full_prefill_s,
        stages=plan.stages,
        fusion=method_fields(generate.fusion),
        eviction=None if eviction is None else method_fields(eviction),
        warnings=[*plan.warnings, *forecast.warnings],
    )


SOURCE_OF_TIER: dict[str, Source] = {name: name for name in ("memory", "ssd", "redis", "s3")}


def token_report(
    trace: TokenTrace, report: Report, generate: Generate, decode: Decode
) -> TokenReport:
    """Join trace and text. Decodes once per token, so it must not run on the event loop."""

    def segment_tokens(
        ids: Sequence[int], segment: SegmentTrace, source: Callable[[TokenRun], Source]
    ) -> SegmentTokens:
        text, starts = _pieces(ids, decode)
        runs = [filled(TokenRunOut, run, source=source(run)) for run in segment.runs]
        return SegmentTokens(text=text, starts=starts, runs=runs, scores=segment.scores)

    return TokenReport(
        layers=trace.layers,
        kv_heads=trace.kv_heads,
        system=segment_tokens(generate.system, trace.system, _source_in(report.system)),
        documents=[
            segment_tokens(chunk.ids, segment, _source_in(reported))
            for chunk, segment, reported in zip(
                generate.documents, trace.documents, report.documents, strict=True
            )
        ],
        question=segment_tokens(generate.question, trace.question, lambda run: "question"),
    )


def _source_in(segment: SegmentReport) -> Callable[[TokenRun], Source]:
    """Return the source of a run in this segment, as `tokens_by_source` counts it."""
    kind = tiers().get(segment.tier)
    tier = SOURCE_OF_TIER.get(segment.tier if kind is None else kind.shown_as, "cold")
    return lambda run: "recomputed" if run.recomputed and tier != "cold" else tier


def _pieces(ids: Sequence[int], decode: Decode) -> tuple[str, list[int]]:
    """Return the text of `ids`, and the character at which each token begins."""
    detokenizer, text, starts = Detokenizer(decode), "", []
    for token in ids:
        starts.append(len(text))
        text += detokenizer.push(token)
    return text, starts


def observe_answer(
    metrics: GatewayMetrics,
    timing: Timing,
    stages: Mapping[str, float],
    report: Report,
    *,
    evicted: bool,
) -> None:
    metrics.ttft.observe(timing.ttft_s)
    metrics.e2e.observe(timing.total_s)
    if timing.tpot_s is not None:
        metrics.tpot.observe(timing.tpot_s)
    for stage, seconds in stages.items():
        if stage in STAGES:
            metrics.stage.labels(stage).observe(seconds)
    metrics.completion_tokens.inc(report.completion_tokens)
    for source, tokens in tokens_by_source(report).items():
        if tokens:
            metrics.prompt_tokens.labels(source).inc(tokens)
    segments = (report.system, *report.documents)
    for decision, count in Counter(map(_decision, segments)).items():
        metrics.segments.labels(decision).inc(count)
    for tier in {segment.tier for segment in segments}.intersection((*TIERS, *tiers())):
        read = [segment for segment in segments if segment.tier == tier]
        metrics.kv_read_bytes.labels(tier).inc(sum(segment.bytes for segment in read))
        metrics.kv_stored_bytes.labels(tier).inc(sum(segment.stored_bytes for segment in read))
    metrics.flops.inc(report.flops)
    metrics.full_prefill_flops.inc(report.full_prefill_flops)
    if report.exact_from is not None:
        metrics.taken_over.labels("later" if report.exact_from else "first_token").inc()
    if evicted:
        metrics.coverage_ratio.observe(report.coverage)
    if report.documents:
        metrics.kept_ratio.observe(report.kept_ratio)
        metrics.recomputed_ratio.observe(report.recomputed_ratio)


def tokens_by_source(report: Report) -> dict[str, int]:
    """Return the prompt's tokens by where their KV came from; they add up to the prompt."""
    out = dict.fromkeys((*PROMPT_SOURCES, *tiers()), 0)
    segments = [report.system, *report.documents]
    earlier = report.reused_from or "pool"
    for segment in segments:
        out[earlier] += segment.reused
        if segment.tier in TIERS or segment.tier in tiers():
            out[segment.tier] += max(0, segment.tokens - segment.rows_recomputed)
            out["recomputed"] += segment.rows_recomputed
        else:
            out["cold"] += segment.tokens - segment.reused
    of_question = report.reused_tokens - sum(segment.reused for segment in segments)
    out[earlier] += of_question
    out["history"] = report.history_tokens
    question = report.prompt_tokens - sum(s.tokens for s in segments) - of_question
    question -= report.history_tokens
    out["question"] = max(0, question)
    return out


def _decision(segment: SegmentReport) -> str:
    """One of `kvstitch.service.shared.metrics.DECISIONS`."""
    if segment.plan == "recompute":
        return "recompute"
    if segment.tokens and segment.reused == segment.tokens:
        return "reuse"
    return "load" if segment.tier in TIERS or segment.tier in tiers() else "miss"
