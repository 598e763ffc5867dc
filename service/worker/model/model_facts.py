"""What is known of a model without its weights: sizes, calibration, what its layers add to causal
attention, and how many operations a prompt takes (docs/specification.md §4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.shared.model_fingerprint import CALIBRATION_FILE


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the served model and its calibration."""

    layers: int
    heads: int
    kv_heads: int
    # for each probe, `[layers, heads]` fp32, not negative, with sum 1
    head_scores: Mapping[str, Tensor] = field(default_factory=dict)
    # layers in which SamKV decides how much of a document a question needs; empty if not measured
    stable_layers: tuple[int, ...] = ()
    stateful: bool = False  # whether layers keep a state instead of a key and value per token


def read_calibration(folder: Path, facts: ModelFacts, first: Path | None = None) -> ModelFacts:
    """Return the facts of the model in `folder` with what calibration files say. The values of the
    file `first` go before those of the folder's; raises ModelRefused if a file does not fit the
    model."""
    for path in (folder / CALIBRATION_FILE, first):
        if path is not None and path.exists():
            facts = _read(path, facts)
    return facts


def _read(path: Path, facts: ModelFacts) -> ModelFacts:
    layers, heads = facts.layers, facts.heads
    try:
        written = json.loads(path.read_text())
        scores = {
            name: _head_scores(rows, layers, heads)
            for name, rows in written.get("head_scores", {}).items()
        }
        stable = tuple(int(layer) for layer in written.get("stable_layers", ()))
        if any(not 0 <= layer < layers for layer in stable):
            raise ValueError(f"stable_layers {list(stable)} of a model with {layers} layers")
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelRefused(
            f"{path} is not a calibration of this model ({error}): delete it, or make it again "
            "with `kvstitch tune`",
            field="model",
        ) from error
    scores, stable = scores or dict(facts.head_scores), stable or facts.stable_layers
    return replace(facts, head_scores=scores, stable_layers=stable)


def _head_scores(rows: Any, layers: int, heads: int) -> Tensor:
    scores = torch.tensor(rows, dtype=torch.float32)
    if tuple(scores.shape) != (layers, heads):
        raise ValueError(f"head scores of shape {tuple(scores.shape)}, not ({layers}, {heads})")
    total = scores.sum()
    if not torch.isfinite(scores).all() or bool((scores < 0).any()) or not total > 0:
        raise ValueError("head scores must be non-negative with a positive sum")
    return scores / total


class Shape(Protocol):
    """The sizes of a decoder that decide its cost; a `DecoderModel` has these attributes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def layer_weights(self) -> Sequence[tuple[int, int]]:
        """Of every layer how many weights a row is multiplied by up to attention, those of mixers
        that stand before it among them, and behind it: of experts those that a row takes."""

    @property
    def ends_with_mixers(self) -> bool:
        """Whether mixers stand behind the last layer, so that every row finishes it."""


@dataclass
class FlopCount:
    """A running total for one prompt."""

    shape: Shape
    total: float = 0.0
    """Operations counted so far."""
    _rows: Tensor | None = None
    _pairs: float = 0.0

    def project(self, layer: int, rows: int) -> None:
        """Add what stands before a layer's attention for so many rows."""
        self.total += 2.0 * rows * self.shape.layer_weights[layer][0]

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

    def finish(self, layer: int, rows: int) -> None:
        """Add what stands behind a layer's attention for so many rows."""
        self.total += 2.0 * rows * self.shape.layer_weights[layer][1]

    def unembed(self, rows: int) -> None:
        """Add the projection to vocabulary logits for so many rows."""
        self.total += 2.0 * rows * self.shape.hidden * self.shape.vocabulary


def full_prefill(shape: Shape, tokens: int, *, behind: int = 0) -> float:
    """Return operations of a full prefill of so many tokens, `behind` others whose KV is at
    hand. The last layer finishes only the last row, as our layer loop does."""
    count = FlopCount(shape)
    for layer in range(shape.layers):
        last = layer == shape.layers - 1 and not shape.ends_with_mixers
        count.project(layer, tokens)
        count.attend(behind + tokens if last else tokens * (behind + (tokens + 1) / 2))
        count.finish(layer, 1 if last else tokens)
    count.unembed(1)
    return count.total


def chunk_prefill(shape: Shape, tokens: int, *, behind: Sequence[int] = (0,)) -> float:
    """Return operations of computing a chunk by itself, behind prefixes of these lengths whose KV
    is at hand: its rows attend behind each of them. It ends with the keys and values of the last
    layer."""
    count, finished = FlopCount(shape), shape.layers - (not shape.ends_with_mixers)
    for layer in range(shape.layers):
        count.project(layer, tokens)
        if layer < finished:
            count.attend(sum(tokens * (before + (tokens + 1) / 2) for before in behind))
            count.finish(layer, tokens)
    return count.total


@dataclass(frozen=True, eq=False)
class AttentionRule:
    """What a layer adds to causal attention by position."""

    window: int | None = None  # the row at t sees only keys j > t - window; None: all up to its own
    # scores s become soft_cap * tanh(s / soft_cap) before the mask; None: they stay
    soft_cap: float | None = None
    # a logit per query head `[heads]` fp32 that takes part in the softmax and has no value, so that
    # a head's weights sum to less than 1; None: no such logit
    sinks: Tensor | None = None

    @property
    def plain_weights(self) -> bool:
        """Whether the weights of the visible keys are a softmax of the scaled scores."""
        return self.soft_cap is None and self.sinks is None

    def of_heads(self, heads: slice) -> AttentionRule:
        return self if self.sinks is None else replace(self, sinks=self.sinks[heads])

    def narrows(self, span: int) -> bool:
        """Return whether a row may not see all earlier keys, where keys lie in `span` positions."""
        return self.window is not None and span > self.window

    def capped(self, scores: Tensor) -> Tensor:
        """Return the scores after the soft cap."""
        if self.soft_cap is None:
            return scores
        return scores.div(self.soft_cap).tanh_().mul_(self.soft_cap)

    def hidden(self, keys: Tensor, rows: Tensor) -> Tensor:
        """Return which keys rows do not see: positions `[n]` and `[m]` → `[m, n]` bool."""
        later = keys > rows[:, None]
        return later if self.window is None else later | (keys <= rows[:, None] - self.window)

    def softmax(self, scores: Tensor) -> Tensor:
        """Return weights of masked fp32 scores `[kv_heads, group, m, n]`; 0 for a row without
        keys."""
        if self.sinks is not None:
            kv_heads, group, m, _ = scores.shape
            sink = self.sinks.view(kv_heads, group, 1, 1).expand(-1, -1, m, 1)
            return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        weights = scores.softmax(-1)
        return weights if self.window is None else weights.nan_to_num_(0.0)


PLAIN = AttentionRule()
