"""`kvstitch tune`: measures which settings suit a model and its documents, and recommends some."""

from __future__ import annotations

import argparse

from service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("tune", "measure which settings suit a model and documents", _add_arguments)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvstitch_tune.command import add_arguments

    add_arguments(parser)
