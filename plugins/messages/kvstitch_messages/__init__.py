"""Answers in Anthropic's Messages format: a plugin that adds POST /v1/messages and its count."""

from typing import Any

from kvstitch.service.plugins import hookimpl


@hookimpl
def gateway_part(gateway: Any) -> Any:
    from kvstitch_messages.route import MessagesPart

    return MessagesPart()
