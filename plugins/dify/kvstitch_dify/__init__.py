"""The documents as external knowledge of Dify: a plugin that adds POST /retrieval."""

from __future__ import annotations

from typing import Any

from kvstitch.service.plugins import hookimpl


@hookimpl
def gateway_part(gateway: Any) -> Any:
    from kvstitch_dify.route import DifyPart

    return DifyPart()
