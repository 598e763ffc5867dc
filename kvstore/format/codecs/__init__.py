"""Codecs by name: each file in this folder is one codec, named after the file.

A codec file defines `CODEC`, an object that satisfies the protocol `Codec` in `base.py`. Files
whose names start with an underscore hold what several codecs share.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import cast

from kvstore.errors import ChunkSpecError
from kvstore.format.codecs.base import Codec


@cache
def codec_names() -> tuple[str, ...]:
    """Names of all codecs in this folder, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if name != "base" and not name.startswith("_")))


@cache
def codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        ChunkSpecError: there is no such codec.
    """
    if name not in codec_names():
        raise ChunkSpecError(f"unknown codec {name!r}: one of {', '.join(codec_names())}")
    return cast(Codec, import_module(f"{__name__}.{name}").CODEC)
