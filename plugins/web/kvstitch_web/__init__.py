"""`kvstitch web`: pages of the web become documents."""

from __future__ import annotations

import argparse

from kvstitch.service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("web", "put pages of the web into a running service", _add_arguments)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvstitch_web.command import add_arguments

    add_arguments(parser)
