"""Reads vectors that were sent as base64 of float32, little-endian."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any


def decode_vectors(rows: Sequence[Any]) -> list[list[float]]:
    """The vectors of OpenAI's embedding objects, in the order of their `index`."""
    return [_vector(row["embedding"]) for row in sorted(rows, key=lambda row: int(row["index"]))]


def _vector(encoded: str) -> list[float]:
    numbers = array("f", base64.b64decode(encoded))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
