"""GET /v1/models and /v1/methods: what this service can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from service.gateway.dependencies import GatewayDep, Generating

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models")
async def models(gateway: GatewayDep, principal: Generating) -> dict[str, Any]:
    """OpenAI's list of models: the one that is served."""
    facts = asdict(gateway.worker.require().model)
    model = {"id": gateway.prompts.model, "object": "model", "created": 0, "owned_by": "kvstitch"}
    return {"object": "list", "data": [{**model, "details": facts}]}


@router.get("/methods")
async def methods(gateway: GatewayDep, principal: Generating) -> dict[str, Any]:
    """Fusion and eviction methods with the schemas of their parameters."""
    ready = gateway.worker.require()
    return {
        "fusion": [asdict(info) for info in ready.fusion],
        "eviction": [asdict(info) for info in ready.eviction],
    }
