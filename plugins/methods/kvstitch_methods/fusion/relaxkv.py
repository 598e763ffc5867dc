"""RelaxKV: at every layer of a pass over the stitched cache the question picks the ⌊ratio · |D|⌋
document tokens that it attends to most (anchors). A row is computed for as long as it is an anchor
of this layer or a later one, and attends only to S and to the anchors of all layers. So more rows
than `ratio` are computed: compare it with others by its operations.

Source: docs/specification.md §1.10; "RelaxKV", arXiv 2609.33503, of which only notes could be read:
how long a row goes on follows from which rows a layer needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.methods.api import (
    DenseMethod,
    LayerLoop,
    LayerView,
    Phase,
    PrefillResult,
    PromptLayout,
    PromptShape,
    Steps,
    TwoPassMethod,
    floor_share,
    parameter,
    stable_topk,
    union,
)

OTHERS = 0.18
"""How much of each later layer's choice is new, for the planner: measured on SmolLM2."""


@dataclass(frozen=True)
class Method(TwoPassMethod):
    """Recompute the document tokens that the question attends to most at each layer, and let them
    attend only to one another and the system prompt."""

    ratio: float = parameter(
        0.15, "share of the documents' tokens that every layer picks", ge=0, le=1, auto=True
    )
    keys: str = parameter(
        "anchors",
        "what computed document rows attend to: S and the picked tokens, or everything",
        choices=("anchors", "all"),
    )

    def recomputed_tokens(self, shape: PromptShape) -> int:
        """Return the last layer's, as a report counts them."""
        return floor_share(sum(shape.documents), self.ratio)

    def phases(self, shape: PromptShape) -> list[Phase]:
        """Return rows become fewer from layer to layer; how many cannot be known before they are
        asked."""
        layers, others = shape.layers, shape.question + shape.uncached
        rows = []
        for left in range(layers - 1, -1, -1):
            share = 1 - (1 - self.ratio) ** (1 + OTHERS * left)
            rows.append(others + floor_share(sum(shape.documents), share))
        question = shape.question
        found = []
        if rows[0] < shape.tokens or rows[-1] < shape.tokens:
            found.append(Phase(range(layers), question, question, question, shape.tokens))
        for layer, (computed, going_on) in enumerate(zip(rows, [*rows[1:], 1], strict=True)):
            one = range(layer, layer + 1)
            found.append(Phase(one, computed, going_on, question, shape.tokens))
        return found

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        layout = loop.layout
        if not len(layout.cached_document_rows):
            return (yield from super().run(loop))
        by_layer = yield from self.attention_scores(loop)
        last_needed = self._last_needed(layout, by_layer)
        rows = torch.nonzero(last_needed >= 0).squeeze(1)
        system = layout.all_rows[: layout.segments[0].end]
        keys = union(system, rows, layout.forced_rows) if self.keys == "anchors" else None
        return (yield from loop.layers(_Repair(last_needed, keys), rows, by_layer.sum(0)))

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None

    def _last_needed(self, layout: PromptLayout, by_layer: Tensor) -> Tensor:
        """Return the last layer of which each token is an anchor, -1 if of none `[n]`."""
        candidates = layout.cached_document_rows
        wanted = floor_share(len(candidates), self.ratio)
        last = torch.full((layout.tokens,), -1, device=candidates.device)
        for layer, scores in enumerate(by_layer):
            last[candidates[stable_topk(scores[candidates], wanted)]] = layer
        return last


@dataclass(frozen=True, eq=False)
class _Repair(DenseMethod):
    """The layers after the question pass."""

    last_needed: Tensor  # last layer at which a row is computed, by token `[n]`
    keys: Tensor | None  # what document rows attend to, ascending; None for everything

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return int((self.last_needed >= 0).sum())

    def select(self, view: LayerView) -> Tensor | None:
        # What this layer's attention computes is read at the next one, if there is one.
        if view.layer == view.flops.shape.layers - 1:
            return None
        return view.rows[self.last_needed[view.rows] > view.layer]

    def document_keys(self, view: LayerView) -> Tensor | None:
        return self.keys
