"""Counts the floating-point operations of a prompt as they are scheduled (docs/specification.md
§4).

A multiply and an add are two operations. Norms, RoPE and softmax are not counted, as is usual in
FLOP counts of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    _counted: float = 0.0
    # What is multiplied with a sum that may still be being computed on a GPU: to read it at every
    # layer would make the GPU wait for Python at every layer.
    _later: list[tuple[float, Tensor]] = field(default_factory=list)
    _rows: Tensor | None = None

    @property
    def total(self) -> float:
        """Operations counted so far; waits for the device on which the rows are."""
        self._counted += sum(factor * float(pairs) for factor, pairs in self._later)
        self._later.clear()
        self._rows = None
        return self._counted

    def project(self, rows: int) -> None:
        """Add the projections to queries, keys and values for so many rows."""
        s = self.shape
        self._counted += 2.0 * rows * s.hidden * s.head_dim * (s.heads + 2 * s.kv_heads)

    def attend(self, pairs: float) -> None:
        """Add attention scores and the weighted sum of values, over all heads.

        Args:
            pairs: (query row, key) pairs that the causal mask lets through.
        """
        self._counted += 4.0 * pairs * self.shape.heads * self.shape.head_dim

    def score(self, pairs: float) -> None:
        """Add attention scores without values, which is what ranking by attention costs."""
        self._counted += 2.0 * pairs * self.shape.heads * self.shape.head_dim

    def attend_causally(self, rows: Tensor) -> None:
        """`attend` of rows, ascending prompt indices `[m]`, that see the keys up to their own."""
        self._add_causal(4.0, rows)

    def score_causally(self, rows: Tensor) -> None:
        """`score` of rows, ascending prompt indices `[m]`, that see the keys up to their own."""
        self._add_causal(2.0, rows)

    def _add_causal(self, operations: float, rows: Tensor) -> None:
        # The row at index t sees t + 1 keys.
        factor = operations * self.shape.heads * self.shape.head_dim
        if rows is self._rows:  # the same rows go through many layers
            before, pairs = self._later.pop()
            self._later.append((before + factor, pairs))
        else:
            self._rows = rows
            self._later.append((factor, rows.sum() + len(rows)))

    def finish(self, rows: int) -> None:
        """Add the output projection and the gated MLP for so many rows."""
        s = self.shape
        per_row = s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.intermediate
        self._counted += 2.0 * rows * per_row

    def unembed(self, rows: int) -> None:
        """Add the projection to vocabulary logits for so many rows."""
        self._counted += 2.0 * rows * self.shape.hidden * self.shape.vocabulary


def full_prefill(shape: Shape, tokens: int, *, behind: int = 0) -> float:
    """Return operations of a full prefill of so many tokens.

    The last layer finishes only the last row, as our layer loop does: nothing reads the others.

    Args:
        behind: tokens before them whose KV is at hand.
    """
    count = FlopCount(shape)
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        count.project(tokens)
        count.attend(behind + tokens if last else tokens * (behind + (tokens + 1) / 2))
        count.finish(1 if last else tokens)
    count.unembed(1)
    return count.total


def chunk_prefill(shape: Shape, tokens: int, *, behind: int = 0) -> float:
    """Return operations of computing a chunk by itself.

    It ends with the keys and values of the last layer.

    Args:
        behind: tokens of the prefix whose KV is at hand.
    """
    count, finished = FlopCount(shape), shape.layers - 1
    count.project(shape.layers * tokens)
    count.attend(finished * tokens * (behind + (tokens + 1) / 2))
    count.finish(finished * tokens)
    return count.total
