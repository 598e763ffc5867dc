"""Tools for agents over the Model Context Protocol: the service's /mcp, and `kvstitch mcp`."""

from __future__ import annotations

import argparse
from typing import Any

from kvstitch.service.plugins import GatewayPart, Verb, hookimpl


@hookimpl
def gateway_part(gateway: Any) -> GatewayPart:
    from kvstitch_mcp.route import McpPart

    return McpPart(gateway)


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("mcp", "a running service's tools for agents, on stdin and stdout", _add_mcp)]


def _add_mcp(parser: argparse.ArgumentParser) -> None:
    from kvstitch_mcp.command import add_arguments

    add_arguments(parser)
