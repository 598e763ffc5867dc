"""/.well-known/oauth-protected-resource: whose tokens are taken; needs none."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from service.errors import NotFound
from service.gateway.http.dependencies import GatewayDep
from service.gateway.http.resource_metadata import MCP_PATH, PATH, metadata

router = APIRouter(include_in_schema=False)


@router.get(PATH)
@router.get(f"{PATH}{MCP_PATH}")
async def protected_resource(request: Request, gateway: GatewayDep) -> dict[str, Any]:
    if not gateway.settings.oidc_issuer:
        raise NotFound("no tokens are taken here: KVSTITCH_OIDC_ISSUER is not set")
    return metadata(request, gateway.settings, request.url.path.removeprefix(PATH))
