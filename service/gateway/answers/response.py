"""Parts of a response, made from the worker's report and the gateway's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retriever import Passage
from service.gateway.schemas.answer import (
    CacheReport,
    Citation,
    PromptTokensDetails,
    Timing,
    Usage,
)
from service.messages.reports import Report
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
    documents = [{**vars(d), "doc_id": doc_ids[d.chunk_id]} for d in report.documents]
    return CacheReport.model_validate(
        {**vars(report), "documents": documents}, from_attributes=True
    )


def timing(ttft_s: float, total_s: float, tokens: int) -> Timing:
    """TTFT, TPOT and total; TPOT = (total - TTFT) / (tokens - 1), None below two tokens."""
    tpot_s = (total_s - ttft_s) / (tokens - 1) if tokens > 1 else None
    return Timing(ttft_s=ttft_s, tpot_s=tpot_s, total_s=total_s)
