"""The base of methods that hold the KV of every prompt token and compute some rows anew, and of
those among them that first run the question over the stitched cache (about one percent of a
prefill's work) to measure how much attention every token receives.

The layer loop (`kvstitch.service.worker.forward.prefill`) does everything else: it places cached
keys at their positions, writes computed ones, masks by index, and keeps the rows that no method may
drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.fusion import (
    FusionMethod,
    Phase,
    PromptShape,
    dense_phases,
    floor_share,
)
from kvstitch.service.worker.methods.layer_view import LayerView, PrefillResult
from kvstitch.service.worker.model.attention import ScoreFn
from kvstitch.service.worker.steps import Steps

RowWeights = Tensor | ScoreFn
"""How a pass turns attention into scores.

Either one weight per row `[m]`, by which the attention that the row pays (summed over heads) is
multiplied; or a function, which is slower.
"""


@dataclass(frozen=True)
class Sight:
    """Which keys the rows of an attention pass see, and among which keys their attention is
    scored: functions of the layer's number that return ascending prompt rows `[k]`; None: all
    that are cached."""

    # keys that the rows attend to, so that their outputs depend on them
    seen: Callable[[int], Tensor] | None = None
    scored: Callable[[int], Tensor] | None = None  # keys that share the attention that is scored


EVERYTHING_CACHED = Sight()


class Probes(NamedTuple):
    """Computed rows that show how wrong the stored KV of their document is."""

    rows: Tensor  # of documents, ascending `[p]`
    # times the mean of fresh minus stored over a document's probes is what all its rows that are
    # not computed are moved by
    weight: float


class LayerLoop(Protocol):
    """Passes over a prompt whose cached segments are stitched together: `layers` once, after as
    many calls of `attention_pass` as a method wants."""

    @property
    def layout(self) -> PromptLayout: ...

    @property
    def num_layers(self) -> int: ...

    def attention_pass(
        self,
        rows: Tensor,
        layers: range,
        weights: Callable[[int], RowWeights],
        sight: Sight = EVERYTHING_CACHED,
    ) -> Steps[Tensor]:
        """Run some rows over the stitched cache and measure which tokens they attend to."""

    def layers(
        self, method: DenseMethod, rows: Tensor, scores: Tensor | None = None
    ) -> Steps[PrefillResult]:
        """Compute `rows` `[m]` from their embeddings, and those that every method computes,
        through all layers, at each of which the method may `select`. Every `LayerView` carries
        `scores` `[n]`."""


@dataclass(frozen=True)
class DenseMethod(FusionMethod):
    """Base: computes only the question, with cached keys at their positions in the prompt."""

    @property
    def layers_without_cache(self) -> int:
        """Number of first layers that need no stored KV: they can run while it is being loaded."""
        return 0

    @property
    def full_layers(self) -> int:
        """Number of first layers that compute every row."""
        return 0

    def is_quiet(self, layer: int) -> bool:
        """Return whether `adjust`, `select` and `document_keys` do nothing at this layer."""
        hooks = ("adjust", "select", "document_keys")
        return all(getattr(type(self), hook) is getattr(DenseMethod, hook) for hook in hooks)

    def reads_replaced(self, layer: int) -> bool:
        """Return whether a hook reads `LayerView.replaced` at this layer."""
        return False

    def start_rows(self, layout: PromptLayout) -> Tensor:
        """Return rows to compute, starting from their embeddings."""
        return layout.question_rows

    def key_positions(self, layout: PromptLayout) -> Tensor:
        """Return the RoPE position `[n]` at which cached keys are placed."""
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        """Return rows that continue from this layer's attention on; None for all."""
        return None

    def adjust(self, view: LayerView) -> None:
        """Change the stored KV of rows that are not computed at this layer, in `view.k` and
        `view.v`, before anything attends to it. Called before `select`."""

    def probes(self, layout: PromptLayout, rows: Tensor, scores: Tensor | None) -> Probes | None:
        """Return by what rows that are not computed are shifted in layers after 0; None: none."""
        return None

    def document_keys(self, view: LayerView) -> Tensor | None:
        """Return the keys `[k]`, ascending, that computed document rows attend to; None: all."""
        return None

    # -- implemented by the base ------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        return (yield from loop.layers(self, self.start_rows(loop.layout)))

    def recomputed_tokens(self, shape: PromptShape) -> int:
        """Return tokens of cached documents that are computed anew: the repair ratio's share of
        the prompt; without a repair ratio, the document rows that `start_rows` picks."""
        if self.repair_ratio is not None:
            wanted = floor_share(shape.tokens, self.repair_ratio)
            return min(wanted, shape.tokens - shape.question - shape.uncached)
        if self.full_layers:
            return 0
        layout = _example(shape)
        return int(torch.isin(layout.cached_document_rows, self.start_rows(layout)).sum())

    def phases(self, shape: PromptShape) -> list[Phase]:
        return list(
            dense_phases(
                shape,
                self._rows(shape),
                full_layers=self.full_layers,
                cache_from=self.layers_without_cache,
            )
        )

    def _rows(self, shape: PromptShape) -> int:
        """Return rows computed at the layers after the full ones."""
        return shape.question + shape.uncached + self.recomputed_tokens(shape)


def _example(shape: PromptShape) -> PromptLayout:
    """Return a made-up prompt of this shape, to see which rows a method would pick."""
    system = shape.tokens - shape.question - shape.uncached - sum(shape.documents)
    lengths = [*shape.documents, shape.uncached]
    documents = [[0] * length for length in lengths]
    uncached = [False] * (1 + len(shape.documents)) + [True]
    return PromptLayout.of([0] * max(0, system), documents, [0] * shape.question, uncached=uncached)


@dataclass(frozen=True)
class TwoPassMethod(DenseMethod):
    """Base: picks rows by what the question attends to in a pass over the stitched cache."""

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        """Return rows to compute, by the attention `[n]` that each token received."""
        raise NotImplementedError

    def question_pass_layers(self, layers: int) -> range:
        """Return the layers whose attention counts; the question pass ends with the last."""
        return range(layers)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        """Return how the question rows' attention at a layer becomes scores."""
        return layout.once("ones of question rows", lambda: torch.ones(len(layout.question_rows)))

    def sight(self, layout: PromptLayout) -> Sight:
        """Return which keys the question sees in its pass, and which share its attention."""
        return EVERYTHING_CACHED

    # -- implemented by the base ------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        if not len(loop.layout.cached_document_rows):
            return (yield from super().run(loop))
        scores = (yield from self.attention_scores(loop)).sum(0)
        rows = self.rows_after_question_pass(loop.layout, scores)
        return (yield from loop.layers(self, rows, scores))

    def attention_scores(self, loop: LayerLoop) -> Steps[Tensor]:
        """Run the question pass; return each token's attention `[layers that count, n]` fp32."""
        layout = loop.layout
        return (
            yield from loop.attention_pass(
                layout.question_rows,
                self.question_pass_layers(loop.num_layers),
                lambda layer: self.question_row_weights(layer, layout),
                self.sight(layout),
            )
        )

    def phases(self, shape: PromptShape) -> list[Phase]:
        """Return the question pass, then the layers."""
        rows, question = self._rows(shape), shape.question
        passes = []
        if rows < shape.tokens:
            layers = range(self.question_pass_layers(shape.layers).stop)
            passes = [Phase(layers, question, question, question, shape.tokens)]
        dense = dense_phases(
            shape, rows, full_layers=self.full_layers, cache_from=self.layers_without_cache
        )
        return [*passes, *dense]
