"""Counts the floating-point operations of a prompt as they are scheduled (docs/specification.md
§4). A multiply and an add are two operations; norms, RoPE and softmax are not counted, as is
usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Shape(Protocol):
    """The sizes of a decoder that decide its cost; a `DecoderModel` has these attributes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


@dataclass
class FlopCount:
    """A running total for one prompt."""

    shape: Shape
    total: float = 0.0
    """Operations counted so far."""
    _rows: Tensor | None = None
    _pairs: float = 0.0

    def project(self, rows: int) -> None:
        """Add the projections to queries, keys and values for so many rows."""
        s = self.shape
        self.total += 2.0 * rows * s.hidden * s.head_dim * (s.heads + 2 * s.kv_heads)

    def attend(self, pairs: float) -> None:
        """Add attention of (query row, key) pairs over all heads: scores and the sum of values."""
        self.total += 4.0 * pairs * self.shape.heads * self.shape.head_dim

    def score(self, pairs: float) -> None:
        """Add attention scores without values, which is what ranking by attention costs."""
        self.total += 2.0 * pairs * self.shape.heads * self.shape.head_dim

    def attend_causally(self, rows: Tensor) -> None:
        """`attend` of rows in host memory, ascending `[m]`, that see the keys up to their own."""
        self._add_causal(4.0, rows)

    def score_causally(self, rows: Tensor) -> None:
        """`score` of rows, ascending prompt indices `[m]`, that see the keys up to their own."""
        self._add_causal(2.0, rows)

    def _add_causal(self, operations: float, rows: Tensor) -> None:
        if rows is not self._rows:  # the same rows go through many layers
            # The row at index t sees t + 1 keys.
            self._rows, self._pairs = rows, float(rows.sum() + len(rows))
        self.total += operations * self._pairs * self.shape.heads * self.shape.head_dim

    def finish(self, rows: int) -> None:
        """Add the output projection and the gated MLP for so many rows."""
        s = self.shape
        per_row = s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.intermediate
        self.total += 2.0 * rows * per_row

    def unembed(self, rows: int) -> None:
        """Add the projection to vocabulary logits for so many rows."""
        self.total += 2.0 * rows * self.shape.hidden * self.shape.vocabulary


def full_prefill(shape: Shape, tokens: int, *, behind: int = 0) -> float:
    """Return operations of a full prefill of so many tokens, `behind` others whose KV is at
    hand. The last layer finishes only the last row, as our layer loop does."""
    count = FlopCount(shape)
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        count.project(tokens)
        count.attend(behind + tokens if last else tokens * (behind + (tokens + 1) / 2))
        count.finish(1 if last else tokens)
    count.unembed(1)
    return count.total


def chunk_prefill(shape: Shape, tokens: int, *, behind: int = 0) -> float:
    """Return operations of computing a chunk by itself, `behind` a prefix whose KV is at hand;
    it ends with the keys and values of the last layer."""
    count, finished = FlopCount(shape), shape.layers - 1
    count.project(shape.layers * tokens)
    count.attend(finished * tokens * (behind + (tokens + 1) / 2))
    count.finish(finished * tokens)
    return count.total
