"""Counts the floating-point operations of a prompt as they are scheduled (METHODS §4).

A multiply and an add are two operations. Norms, RoPE and softmax are left out, as everywhere in
the field. Knows no tensors of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Shape(Protocol):
    """The sizes of a decoder that decide its cost (an adapter has them)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


@dataclass
class FlopCount:
    """A running total for one prompt; `shape` is the decoder's."""

    shape: Shape
    total: float = 0.0

    def project(self, rows: int) -> None:
        """Queries, keys and values of `rows`."""
        s = self.shape
        self.total += 2.0 * rows * s.hidden * s.head_dim * (s.heads + 2 * s.kv_heads)

    def attend(self, pairs: float) -> None:
        """Scores and weighted values of `pairs` visible (query row, key) pairs, all heads."""
        self.total += 4.0 * pairs * self.shape.heads * self.shape.head_dim

    def score(self, pairs: float) -> None:
        """Scores alone: what ranking by attention costs."""
        self.total += 2.0 * pairs * self.shape.heads * self.shape.head_dim

    def finish(self, rows: int) -> None:
        """Output projection and gated MLP of `rows`."""
        s = self.shape
        per_row = s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.intermediate
        self.total += 2.0 * rows * per_row

    def unembed(self, rows: int) -> None:
        self.total += 2.0 * rows * self.shape.hidden * self.shape.vocabulary


def causal_pairs(rows: Tensor) -> float:
    """Keys that the rows at these indices see, summed: the row at index t sees t + 1."""
    return float(rows.sum()) + len(rows)


def full_prefill(shape: Shape, tokens: int) -> float:
    """Operations of a full prefill whose last layer finishes only the last row, as ours does."""
    count = FlopCount(shape)
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        count.project(tokens)
        count.attend(tokens if last else tokens * (tokens + 1) / 2)
        count.finish(1 if last else tokens)
    count.unembed(1)
    return count.total
