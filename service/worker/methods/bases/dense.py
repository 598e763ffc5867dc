"""The base of methods that hold every token of the prompt and compute some rows anew.

The layer loop (`service.worker.forward.prefill`) owns everything else: placing cached keys at their
positions, writing computed ones, the causal mask by index, and the rows that no method may drop
(the question, uncached segments).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from service.worker.core.layer_view import AttentionScores, LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.steps import Steps
from service.worker.methods.bases.cost import Phase, PromptShape, dense_phases
from service.worker.methods.bases.fusion import FusionMethod, floor_share
from service.worker.model.attention import ScoreFn

RowWeights = Tensor | ScoreFn
"""How a pass turns attention into scores: a weight for each row `[m]` (the attention it pays,
summed over heads, counts that much), or a function, which is slower."""


class LayerLoop(Protocol):
    """Passes over a prompt whose cached segments are stitched together. A method runs `layers`
    once, and before it as many `attention_pass`es as it wants."""

    @property
    def layout(self) -> PromptLayout: ...

    @property
    def num_layers(self) -> int: ...

    def attention_pass(
        self,
        rows: Tensor,
        layers: range,
        weights: Callable[[int], RowWeights],
        *,
        reusable_layers: int = 0,
    ) -> Steps[Tensor]:
        """Run some rows over the stitched cache: which of its tokens do they attend to?

        Args:
            rows: ascending prompt rows.
            layers: those whose attention counts; the pass ends behind the last of them.
            weights: how the attention of a layer becomes scores.
            reusable_layers: the rows are the question's, and `layers` may take what this pass
                gives them in so many first layers.

        Returns:
            Scores `[n]` fp32, summed over `layers`; zero for tokens of uncached segments.
        """
        ...

    def layers(
        self, method: DenseMethod, rows: Tensor, scores: AttentionScores | None = None
    ) -> Steps[PrefillResult]:
        """Compute `rows`, and those that every method computes, through all layers.

        Args:
            method: asked at every layer which rows go on.
            rows: prompt rows that are computed from the embedding on.
            scores: what passes before found; methods and token traces see them in every view.
        """
        ...


@dataclass(frozen=True)
class DenseMethod(FusionMethod):
    """Base: recompute nothing but the question, cached keys at their places in the prompt."""

    @property
    def layers_without_cache(self) -> int:
        """First layers that look at no stored KV: they run before it has been loaded."""
        return 0

    @property
    def full_layers(self) -> int:
        """First layers that every row goes through. What runs there is not lost if a segment that
        was counted on turns out not to be stored."""
        return 0

    def start_rows(self, layout: PromptLayout) -> Tensor:
        """Rows computed from the embedding on."""
        return layout.question_rows

    def key_positions(self, layout: PromptLayout) -> Tensor:
        """RoPE position `[n]` at which cached keys are placed."""
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        """Rows that go on from this layer's attention; None: all."""
        return None

    # -- what the base owns -----------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        return (yield from loop.layers(self, self.start_rows(loop.layout)))

    def recomputed_tokens(self, shape: PromptShape) -> int:
        """The repair ratio's share of the prompt; without one, the document rows that `start_rows`
        picks."""
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
        """Rows computed at the layers after the full ones."""
        return shape.question + shape.uncached + self.recomputed_tokens(shape)


def _example(shape: PromptShape) -> PromptLayout:
    """A prompt of such a shape, for methods that are asked which rows they would pick."""
    system = shape.tokens - shape.question - shape.uncached - sum(shape.documents)
    lengths = [*shape.documents, shape.uncached]
    documents = [[0] * length for length in lengths]
    uncached = [False] * (1 + len(shape.documents)) + [True]
    return PromptLayout.of([0] * max(0, system), documents, [0] * shape.question, uncached=uncached)
