"""Methods that rank document tokens by the question's attention (docs/specification.md §1.10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.methods.api import (
    DenseMethod,
    LayerLoop,
    LayerView,
    Phase,
    PrefillResult,
    PromptLayout,
    PromptShape,
    Sight,
    Steps,
    TwoPassMethod,
    floor_share,
    parameter,
    stable_topk,
    union,
)


@dataclass(frozen=True)
class QuestionRankedMethod(TwoPassMethod):
    """Base of published methods that compute the ⌊ratio · |D|⌋ document tokens that the question
    attends to most. They differ in what the question has seen, in the layers that count, and in
    how many rows they compute. A subclass has the parameter `ratio`."""

    @property
    def document_ratio(self) -> float:
        """Share of the documents' tokens that are computed anew."""
        assert self.repair_ratio is not None, "a subclass has a repair parameter"
        return self.repair_ratio

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return floor_share(sum(shape.documents), self.document_ratio)

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        wanted = floor_share(len(candidates), self.document_ratio)
        return candidates[stable_topk(scores[candidates], wanted)]

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None


def last_layers(layers: int, first: int, count: int) -> range:
    """Return the `count` layers from `first` on; of a model with fewer layers, its last ones."""
    stop = min(first + count, layers)
    return range(max(0, stop - count), stop)


@dataclass(frozen=True)
class ProphetKV(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most over all layers, asked
    before it has seen the documents.

    Σ over layers, heads and question rows of the softmax over document keys. "ProphetKV", arXiv
    2602.02579, does not say what the question has seen when it is asked: `probe` and `keys` are
    the two readings of others.
    """

    ratio: float = parameter(
        0.2, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )
    probe: str = parameter(
        "query_only",
        "what the question sees while it is asked: itself, or the stitched documents too",
        choices=("query_only", "stitched"),
    )
    keys: str = parameter(
        "documents",
        "keys that share the question's attention: the documents' or all",
        choices=("documents", "all"),
    )

    def sight(self, layout: PromptLayout) -> Sight:
        question, documents = layout.question_rows, layout.cached_document_rows
        return Sight(
            seen=(lambda layer: question) if self.probe == "query_only" else None,
            scored=(lambda layer: documents) if self.keys == "documents" else None,
        )


@dataclass(frozen=True)
class InfoFlow(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most in four late layers of a
    pass over the cache.

    "InfoFlow KV", arXiv 2603.05353: layers 22 to 25 of every model. It also reorders the chunks by
    this signal, which is left out.
    """

    ratio: float = parameter(
        0.15, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )
    first_layer: int = parameter(
        22, "the first of the four layers; of a model with fewer layers its last four count", ge=0
    )

    def question_pass_layers(self, layers: int) -> range:
        return last_layers(layers, self.first_layer, 4)


@dataclass(frozen=True)
class FusionRAG(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most in the last layer of a pass
    over the cache; meant for chunks that are precomputed behind their neighbours.

    "FusionRAG", arXiv 2601.12904; its offline step is the prefix mode `neighbours`. Not said there,
    and chosen: scores are means over heads, over all keys, of a question that has seen the cache.
    """

    ratio: float = parameter(
        0.15, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )

    def question_pass_layers(self, layers: int) -> range:
        return range(layers - 1, layers)


OTHERS = 0.18
"""How much of each later layer's choice is new, for the planner: measured on SmolLM2."""


@dataclass(frozen=True)
class RelaxKV(TwoPassMethod):
    """Recompute the document tokens that the question attends to most at each layer, and let them
    attend only to one another and the system prompt.

    The ⌊ratio · |D|⌋ tokens that a layer picks are its anchors. A row is computed for as long as it
    is an anchor of this layer or a later one, so more rows than `ratio` are computed: compare it
    with others by its operations. Of "RelaxKV", arXiv 2609.33503, only notes could be read: how
    long a row goes on follows from which rows a layer needs.
    """

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
