"""A dry run's result: what was found and what the worker expects. Knows no HTTP and no socket."""

from __future__ import annotations

from typing import Any

from service.gateway.answers import response
from service.gateway.answers.preparation import PreparedRequest
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.explain import DocumentForecast, Explanation, SegmentForecastOut
from service.messages import Forecast, SegmentForecast


def explanation(
    model: str, request: GenerateRequest, prepared: PreparedRequest, forecast: Forecast
) -> Explanation:
    generate, passages = prepared.generate, prepared.found.passages
    before_s = sum(prepared.stages.values())
    doc_ids = {passage.chunk.chunk_id: passage.chunk.doc_id for passage in passages}
    return Explanation(
        id=generate.id,
        model=model,
        citations=response.citations(passages, with_text=request.include_text),
        prompt_tokens=forecast.prompt_tokens,
        max_tokens=generate.sampling.max_tokens,
        system=SegmentForecastOut(**_segment(forecast.system)),
        documents=[
            DocumentForecast(doc_id=doc_ids[d.chunk_id], chunk_id=d.chunk_id, **_segment(d))
            for d in forecast.documents
        ],
        recomputed_tokens=forecast.recomputed_tokens,
        flops=forecast.flops,
        full_prefill_flops=forecast.full_prefill_flops,
        expected_ttft_s=before_s + forecast.first_token_s,
        full_prefill_ttft_s=before_s + forecast.full_prefill_s,
        measured=forecast.measured,
        stages=prepared.stages,
        fusion=response.method(generate.fusion),
        eviction=None if generate.eviction is None else response.method(generate.eviction),
        warnings=[*prepared.warnings, *forecast.warnings],
    )


def _segment(segment: SegmentForecast) -> dict[str, Any]:
    names = ("tier", "tokens", "stored_bytes", "load_bytes", "action", "load_s")
    return {name: getattr(segment, name) for name in names}
