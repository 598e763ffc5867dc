"""Models in GGUF files, and models that have a name: they become folders that are served.

gguf_source         a model before and after its folder is made; the rest is its parts
download            fetches a model that has a name
model_cache         folders made of .gguf files
gguf_file           what a .gguf file says about itself
gguf_families       how llama.cpp writes the families that are served
gguf_checks         whether a file can be served
gguf_conversion     a process of its own, with gguf_config: these alone load torch
"""

from __future__ import annotations

import argparse
from typing import Any

from kvstitch.service.plugins import ModelSource, Verb, hookimpl


@hookimpl
def model_source(settings: Any) -> ModelSource | None:
    from kvstitch_gguf.gguf_source import source_of

    return source_of(settings)


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("model", "models with names: list, fetch, path", _add_arguments)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvstitch_gguf.command import add_arguments

    add_arguments(parser)
