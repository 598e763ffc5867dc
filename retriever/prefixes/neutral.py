"""Neutral passages: what chunks stand behind whose group is too small for primers of its own.

They come with the package, so nobody who may store documents has a say in them. They are of the
kind that documents are, and about nothing in particular (docs/methods.md has what they cost).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvstitch.retriever.documents import Chunk

_FIRST_ID = -(1 << 40)  # ids below 0 are of no catalog; those of inline documents count from -1


@cache
def neutral_chunks() -> dict[int, Chunk]:
    """Return the passages by their ids, which are the same in every release that has their text."""
    text = Path(__file__).with_name("neutral.txt").read_text(encoding="utf-8")
    found: dict[int, Chunk] = {}
    for number, passage in enumerate(text.strip().split("\n\n")):
        title, _, body = passage.partition("\n")
        chunk_id = _FIRST_ID - number
        found[chunk_id] = Chunk(
            chunk_id, "", number, body, title, 0, len(body), len(body) // 3, "neutral"
        )
    return found


def neutral_prefixes(count: int, primers: int) -> list[list[Chunk]]:
    """Return as many primers of `count` passages as there are, and at most `primers`."""
    every = list(neutral_chunks().values())
    return [every[place : place + count] for place in range(0, len(every), count)][:primers]
