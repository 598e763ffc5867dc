"""The result of a dry run: the prompt that was planned, and what the worker expects it to take."""

from __future__ import annotations

from typing import Any

from service.gateway.answers import response
from service.gateway.answers.prepared_request import PreparedRequest
from service.gateway.schemas.explain import DocumentForecast, Explanation, SegmentForecastOut
from service.messages.reports import Forecast, SegmentForecast

_SEGMENT_FIELDS = (
    "tier", "tokens", "stored_bytes", "load_bytes", "action", "load_s", "computed", "behind",
    "reused",
)  # fmt: skip


def explanation(model: str, prepared: PreparedRequest, forecast: Forecast) -> Explanation:
    generate, doc_ids = prepared.generate, prepared.doc_ids
    gateway_s = sum(prepared.stages.values())
    eviction = generate.eviction
    return Explanation(
        id=generate.id,
        model=model,
        adapter=generate.lora or None,
        citations=prepared.citations,
        found=bool(prepared.passages),
        retrieval=prepared.retrieval,
        prompt_tokens=forecast.prompt_tokens,
        max_tokens=generate.sampling.max_tokens,
        system=SegmentForecastOut(**_segment_fields(forecast.system)),
        documents=[
            DocumentForecast(doc_id=doc_ids[d.chunk_id], chunk_id=d.chunk_id, **_segment_fields(d))
            for d in forecast.documents
        ],
        recomputed_tokens=forecast.recomputed_tokens,
        reused_tokens=forecast.reused_tokens,
        reused_from=forecast.reused_from,
        flops=forecast.flops,
        full_prefill_flops=forecast.full_prefill_flops,
        expected_ttft_s=gateway_s + forecast.first_token_s,
        full_prefill_ttft_s=gateway_s + forecast.full_prefill_s,
        measured=forecast.measured,
        stages=prepared.stages,
        fusion=response.method_fields(generate.fusion),
        eviction=None if eviction is None else response.method_fields(eviction),
        warnings=[*prepared.warnings, *forecast.warnings],
    )


def _segment_fields(segment: SegmentForecast) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in _SEGMENT_FIELDS}
