"""`kvstitch tune` and `kvstitch eval`: which settings suit a model and its documents, and how well
questions find them."""

from __future__ import annotations

import argparse

from kvstitch.service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [
        Verb("tune", "measure which settings suit a model and documents", _add_tune),
        Verb("eval", "how well it finds what your questions should find", _add_eval),
    ]


def _add_tune(parser: argparse.ArgumentParser) -> None:
    from kvstitch_tune.command import add_arguments

    add_arguments(parser)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    from kvstitch_tune.evaluation import add_arguments

    add_arguments(parser)
