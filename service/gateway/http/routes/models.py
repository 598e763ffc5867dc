"""GET /v1/models and /v1/methods: what this service offers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from service.errors import ModelNotFound
from service.gateway.http.dependencies import GatewayDep, Generating
from service.gateway.http.openai.model_presets import list_models
from service.gateway.schemas.openai.common import ModelList, ModelOut

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models", response_model_exclude_none=True)
async def models(gateway: GatewayDep, principal: Generating) -> ModelList:
    """The model that is served, alone and with each of its presets, and its LoRA adapters."""
    prompts, ready = gateway.prompts, gateway.worker.require()
    return ModelList(data=list_models(prompts.model, prompts.created, ready, principal.adapter))


@router.get("/models/{model_id:path}", response_model_exclude_none=True)
async def model(model_id: str, gateway: GatewayDep, principal: Generating) -> ModelOut:
    """One of them."""
    for found in (await models(gateway, principal)).data:
        if found.id == model_id:
            return found
    raise ModelNotFound(f"there is no model {model_id!r}; GET /v1/models lists them", field="model")


@router.get("/methods")
async def methods(gateway: GatewayDep, principal: Generating) -> dict[str, Any]:
    """Fusion and eviction methods with the schemas of their parameters, and the defaults."""
    ready = gateway.worker.require()
    return {
        "fusion": [asdict(info) for info in ready.fusion],
        "eviction": [asdict(info) for info in ready.eviction],
        "defaults": gateway.default_methods.describe(codec=ready.model.codec, offered=ready.fusion),
    }
