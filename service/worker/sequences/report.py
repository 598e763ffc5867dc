"""Builds the report that is sent with an answer: how it was computed, and what that cost."""

from __future__ import annotations

from typing import Literal

from service.messages.reports import Report, SegmentReport
from service.messages.requests import ColdMode
from service.worker.loading.segment_load import UNCACHED, SegmentRead
from service.worker.prefix_cache import POOL
from service.worker.sequences.sequence import EngineSequence


def report(sequence: EngineSequence) -> Report:
    """Return the report of a sequence, also of one whose prompt was never run."""
    asked, work, stages = sequence.asked, sequence.work, sequence.clock.stages
    segments = [_segment(sequence, i) for i in range(len(asked.addresses))]
    ran = bool(work.rows_by_segment)
    reused = 0 if sequence.reuse is None or not ran else sequence.reuse.tokens
    taken = sequence.reused_history if ran else 0
    if taken:  # less what was repaired
        taken = sequence.history_tokens - work.history_rows
    question = len(asked.request.question) - (reused - sum(s.reused for s in segments)) - taken
    with_prompt = sum(s.rows_recomputed for s in segments) + question
    document_rows = sum(_computed_tokens(s) for s in segments[1:])
    recomputed = sum(_computed_tokens(s) for s in segments) + question
    # Of what a sparse method holds, an even share is counted for every chunk.
    held = work.entries / max(1, asked.prompt_tokens)
    cached = work.entries - with_prompt - round(held * (recomputed - with_prompt))
    loading_s = sum(s.load_s for s in segments)
    return Report(
        prompt_tokens=asked.prompt_tokens,
        completion_tokens=len(sequence.tokens),
        cached_tokens=max(0, cached) if ran else 0,
        recomputed_tokens=recomputed if ran else 0,
        system=segments[0],
        documents=segments[1:],
        rows_per_layer=work.rows_per_layer,
        kept_per_layer=work.kept_per_layer,
        coverage=work.coverage,
        flops=work.flops,
        full_prefill_flops=work.full_prefill_flops,
        kept_ratio=_kept_ratio(sequence),
        recomputed_ratio=document_rows / max(1, sum(asked.document_tokens)),
        stages=stages,
        decode_steps=work.decode_steps,
        seed=sequence.sampler.seed if asked.request.sampling.temperature > 0 else None,
        warnings=sequence.warnings,
        ratio=sequence.fusion.repair_ratio,
        hidden_load_s=max(0.0, loading_s - stages.get("load", 0.0)),
        gate=asked.gated.note if asked.gated else None,
        history_tokens=taken,
        reused_tokens=reused,
        reused_from=POOL if reused else "",
        token_fates=None if sequence.prefill.trace is None else sequence.prefill.trace.report(),
    )


def _computed_tokens(segment: SegmentReport) -> int:
    """Return its tokens that were computed for this request, with the prompt or by themselves."""
    return segment.tokens if segment.computed == "as_stored" else segment.rows_recomputed


def _kept_ratio(sequence: EngineSequence) -> float:
    """Return the share of the documents' KV entries that are held after the first token."""
    documents, kept = sum(sequence.asked.document_tokens), sequence.work.kept_per_layer
    if not kept or not documents:
        return 1.0
    mean = sum(kept) / len(kept)
    others = sequence.asked.prompt_tokens - documents
    return max(0.0, min(1.0, (mean - others) / documents))


def _segment(sequence: EngineSequence, number: int) -> SegmentReport:
    request, rows = sequence.asked.request, sequence.work.rows_by_segment
    load = sequence.loads.segments[number] if sequence.loads.segments else None
    document = request.documents[number - 1] if number else None
    read = load.so_far() if load is not None else SegmentRead()
    tokens = len(request.system if document is None else document.ids)
    kept = 0 if sequence.reuse is None or not rows else sequence.reuse.tokens
    reused = reused_by_segment(sequence, kept)[number]
    tier = read.tier
    if sequence.reuse is not None and reused and reused == tokens:
        tier = POOL
    computed: ColdMode | Literal[""] = ""
    if tier == UNCACHED and tokens and rows:
        computed = "as_stored" if load is not None and load.computed_alone else "in_context"
    return SegmentReport(
        chunk_id=-1 if document is None else document.chunk_id,
        tokens=tokens,
        tier=tier,
        bytes=read.nbytes,
        stored_bytes=read.stored_bytes,
        load_s=read.seconds,
        rows_recomputed=rows[number] if rows else 0,
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
    for segment in (len(sequence.asked.request.system), *sequence.asked.document_tokens):
        out.append(min(segment, tokens))
        tokens -= out[-1]
    return out
