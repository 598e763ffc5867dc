"""Passages, and how a retriever ranks them for questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors of length one, `[texts, dim]`."""


@dataclass(frozen=True)
class Passage:
    title: str
    text: str


def nearest(questions: Sequence[str], pool: Sequence[Passage], embed: Embed) -> list[list[Passage]]:
    """All passages for each question, the nearest first; ties in the order of the pool."""
    vectors = embed([f"{p.title}\n{p.text}" for p in pool])
    ranks = np.argsort(-(embed(list(questions)) @ vectors.T), axis=1, kind="stable")
    return [[pool[place] for place in ranking] for ranking in ranks]
