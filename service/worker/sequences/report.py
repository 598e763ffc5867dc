"""Builds the report that is sent with an answer: how it was computed, and what that cost."""

from __future__ import annotations

from typing import Literal

from service.messages.reports import Report, SegmentReport
from service.messages.requests import ColdMode
from service.worker.loading.segment_load import UNCACHED, SegmentRead
from service.worker.prefix_cache.prompts import POOL
from service.worker.sequences.sequence import EngineSequence


def report(sequence: EngineSequence) -> Report:
    """Return the report of a sequence, also of one whose prompt was never run."""
    request, stages = sequence.request, sequence.clock.stages
    segments = [_segment(sequence, i) for i in range(len(sequence.addresses))]
    ran = bool(sequence.rows_by_segment)
    reused = 0 if sequence.reuse is None or not ran else sequence.reuse.tokens
    taken = sequence.reused_history if ran else 0
    if taken:  # less what was repaired
        taken = sequence.history_tokens - sequence.history_rows
    question = len(request.question) - (reused - sum(s.reused for s in segments)) - taken
    with_prompt = sum(s.rows_recomputed for s in segments) + question
    document_rows = sum(_computed_tokens(s) for s in segments[1:])
    recomputed = sum(_computed_tokens(s) for s in segments) + question
    # Of what a sparse method holds, an even share is counted for every chunk.
    held = sequence.entries / max(1, sequence.prompt_tokens)
    cached = sequence.entries - with_prompt - round(held * (recomputed - with_prompt))
    loading_s = sum(s.load_s for s in segments)
    return Report(
        prompt_tokens=sequence.prompt_tokens,
        completion_tokens=len(sequence.tokens),
        cached_tokens=max(0, cached) if ran else 0,
        recomputed_tokens=recomputed if ran else 0,
        system=segments[0],
        documents=segments[1:],
        rows_per_layer=sequence.rows_per_layer,
        kept_per_layer=sequence.kept_per_layer,
        coverage=sequence.coverage,
        flops=sequence.flops,
        full_prefill_flops=sequence.full_prefill_flops,
        kept_ratio=_kept_ratio(sequence),
        recomputed_ratio=document_rows / max(1, sum(sequence.document_tokens)),
        stages=stages,
        decode_steps=sequence.decode_steps,
        seed=sequence.sampler.seed if request.sampling.temperature > 0 else None,
        warnings=sequence.warnings,
        ratio=sequence.fusion.repair_ratio,
        hidden_load_s=max(0.0, loading_s - stages.get("load", 0.0)),
        gate=sequence.gated.note if sequence.gated else None,
        history_tokens=taken,
        reused_tokens=reused,
        reused_from=POOL if reused else "",
        token_fates=None if sequence.token_trace is None else sequence.token_trace.report(),
    )


def _computed_tokens(segment: SegmentReport) -> int:
    """Return its tokens that were computed for this request, with the prompt or by themselves."""
    return segment.tokens if segment.computed == "as_stored" else segment.rows_recomputed


def _kept_ratio(sequence: EngineSequence) -> float:
    """Return the share of the documents' KV entries that are held after the first token."""
    documents = sum(sequence.document_tokens)
    if not sequence.kept_per_layer or not documents:
        return 1.0
    mean = sum(sequence.kept_per_layer) / len(sequence.kept_per_layer)
    others = len(sequence.request.system) + len(sequence.request.question)
    return max(0.0, min(1.0, (mean - others) / documents))


def _segment(sequence: EngineSequence, number: int) -> SegmentReport:
    request = sequence.request
    load = sequence.segments[number] if sequence.segments else None
    document = request.documents[number - 1] if number else None
    read = load.so_far() if load is not None else SegmentRead()
    tokens = len(request.system if document is None else document.ids)
    kept = 0 if sequence.reuse is None or not sequence.rows_by_segment else sequence.reuse.tokens
    reused = reused_by_segment(sequence, kept)[number]
    tier = read.tier
    if sequence.reuse is not None and reused and reused == tokens:
        tier = POOL
    computed: ColdMode | Literal[""] = ""
    if tier == UNCACHED and tokens and sequence.rows_by_segment:
        computed = "as_stored" if load is not None and load.computed_alone else "in_context"
    return SegmentReport(
        chunk_id=-1 if document is None else document.chunk_id,
        tokens=tokens,
        tier=tier,
        bytes=read.nbytes,
        stored_bytes=read.stored_bytes,
        load_s=read.seconds,
        rows_recomputed=sequence.rows_by_segment[number] if sequence.rows_by_segment else 0,
        problems=[f"{tier}: {kind}" for tier, kind in read.problems],
        plan=load.plan if load is not None else "",
        why=load.why if load is not None else "",
        computed=computed,
        behind=0 if document is None else document.chunks_behind,
        reused=reused,
    )


def reused_by_segment(sequence: EngineSequence, tokens: int) -> list[int]:
    """Return how many of the prompt's first `tokens` tokens are each segment's, S first."""
    out = []
    for segment in (len(sequence.request.system), *sequence.document_tokens):
        out.append(min(segment, tokens))
        tokens -= out[-1]
    return out
