"""Parts of a response, made from the worker's report and the gateway's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retriever import Passage
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
from service.messages.reports import GateNote, Report, SegmentReport
from service.messages.requests import Method

NO_URLS: Mapping[str, str] = {}


def citations(
    passages: Sequence[Passage], *, with_text: bool, urls: Mapping[str, str] = NO_URLS
) -> list[Citation]:
    return [
        Citation(
            index=index,
            doc_id=passage.chunk.doc_id,
            chunk_id=passage.chunk.chunk_id,
            title=passage.chunk.title,
            char_start=passage.chunk.char_start,
            char_end=passage.chunk.char_end,
            page=passage.chunk.page,
            heading=passage.chunk.heading,
            url=urls.get(passage.chunk.doc_id),
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


def method_fields(method: Method) -> dict[str, object]:
    """A method as clients write it: {"method": name, parameter: value, …}."""
    return {"method": method.name, **method.parameters}


def usage(report: Report) -> Usage:
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        total_tokens=report.prompt_tokens + report.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=report.cached_tokens),
    )


def cache_report(report: Report, doc_ids: Mapping[int, str]) -> CacheReport:
    """What happened to the KV of every segment.

    Args:
        report: From the worker.
        doc_ids: Chunk id to the id of its document.
    """
    return CacheReport(
        system=CacheSegment(**_segment_fields(report.system)),
        documents=[
            CacheDocument(doc_id=doc_ids[d.chunk_id], chunk_id=d.chunk_id, **_segment_fields(d))
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
        reused_tokens=report.reused_tokens,
        reused_from=report.reused_from,
        ratio=report.ratio,
        gate=_gate_note(report.gate),
    )


def timing(ttft_s: float, total_s: float, tokens: int) -> Timing:
    """TTFT, TPOT and total; TPOT = (total - TTFT) / (tokens - 1), None below two tokens."""
    tpot_s = (total_s - ttft_s) / (tokens - 1) if tokens > 1 else None
    return Timing(ttft_s=ttft_s, tpot_s=tpot_s, total_s=total_s)


def _gate_note(note: GateNote | None) -> GateNoteOut | None:
    if note is None:
        return None
    return GateNoteOut(state=note.state, used=method_fields(note.used), why=note.why)


def _segment_fields(segment: SegmentReport) -> dict[str, Any]:
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
        "computed": segment.computed,
        "behind": segment.behind,
        "reused": segment.reused,
    }
