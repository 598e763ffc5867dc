"""The result of a dry run: the prompt that was planned, and what the worker expects it to take."""

from __future__ import annotations

from service.gateway.answers.prepared_request import PreparedRequest
from service.gateway.schemas.answer import Explanation
from service.messages.reports import Forecast


def explanation(model: str, prepared: PreparedRequest, forecast: Forecast) -> Explanation:
    """Join what the gateway has prepared with the worker's forecast for it."""
    generate, doc_ids = prepared.generate, prepared.doc_ids
    gateway_s = sum(prepared.stages.values())
    return Explanation.model_validate(
        {
            **vars(forecast),
            "id": generate.id,
            "model": model,
            "adapter": generate.lora or None,
            "citations": prepared.citations,
            "found": bool(prepared.passages),
            "retrieval": prepared.retrieval,
            "max_tokens": generate.sampling.max_tokens,
            "documents": [
                {**vars(each), "doc_id": doc_ids[each.chunk_id]} for each in forecast.documents
            ],
            "expected_ttft_s": gateway_s + forecast.first_token_s,
            "full_prefill_ttft_s": gateway_s + forecast.full_prefill_s,
            "stages": prepared.stages,
            "fusion": generate.fusion,
            "eviction": generate.eviction,
            "warnings": [*prepared.warnings, *forecast.warnings],
        },
        from_attributes=True,
    )
