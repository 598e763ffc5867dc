"""/admin/gate: which fusion methods are trusted. It holds for the whole service."""

from __future__ import annotations

from fastapi import APIRouter

from service.gateway.answers.methods import gate_states, reset_gate
from service.gateway.http.dependencies import Administering, GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.schemas.admin import Gate, GateReset

router = APIRouter(prefix="/admin/gate", tags=["operations"], route_class=JsonRoute)


@router.get("")
async def gate(principal: Administering, gateway: GatewayDep) -> Gate:
    """How methods agree with full prefill, and what is used instead of those that do not."""
    return await gate_states(gateway.worker, gateway.settings.gate_sample)


@router.post("/reset")
async def reset(principal: Administering, gateway: GatewayDep, body: GateReset) -> Gate:
    """Trust a method again, or all of them; what was seen of it so far counts no more."""
    return await reset_gate(gateway.worker, gateway.settings.gate_sample, body.method)
