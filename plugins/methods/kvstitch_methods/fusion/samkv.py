"""SamKV: reads and holds only the documents' first and last blocks and the middle blocks that the
question needs, by its mean queries over the ends and the documents' sketches. Only ends and outlier
tokens are computed anew (`selection` scores the blocks and plans the tokens).

Source: docs/specification.md §1.7; "Semantic-aware multi-context KV".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch_methods.samkv.selection import (
    Selection,
    SketchedPrompt,
    SparsePlan,
    make_plan,
    outliers,
    personalised,
    select,
)
from kvstitch_methods.samkv.sketch import BLOCK, BlockGrid
from kvstitch_methods.samkv.sparse_method import SparseMethod
from service.worker.methods.api import ModelFacts, PromptShape, parameter


@dataclass(frozen=True)
class Method(SparseMethod):
    """Load and keep about a sixth of the documents' KV: their ends and the blocks this question
    needs; recompute the ends. Nothing else is read, held or attended to."""

    update: str = parameter(
        "overwrite",
        "recomputed KV replaces the stored, or is blended with it by their cosine",
        choices=("overwrite", "fusion"),
    )
    selection: bool = parameter(True, "keep middle blocks that the question needs")
    personalised_bias: bool = parameter(
        True, "ask each document with what the other documents share with the question"
    )
    recompute: bool = parameter(True, "compute the ends of every document anew")
    max_kept: float = parameter(
        0.19,
        "upper bound on the share of document tokens kept, unless the ends and one block are more",
        ge=0,
        le=1,
    )
    max_recomputed: float = parameter(
        0.15,
        "share of a document's tokens to compute anew: of its first block, then from its end "
        "backwards; a document of at most three blocks is computed whole",
        ge=0,
        le=1,
    )
    normalise: str = parameter(
        "norm",
        "how block scores of different documents are made comparable",
        choices=("norm", "minmax", "softmax"),
    )
    outliers_of: str = parameter(
        "document",
        "among which blocks a block must stand out for its token to be recomputed",
        choices=("document", "request"),
    )

    def plan(self, prompt: SketchedPrompt, queries: Tensor) -> SparsePlan:
        documents = prompt.documents
        selection = self.selected(prompt, queries)
        return make_plan(
            prompt.layout.segments[0].tokens,
            documents,
            Selection(selection.blocks or [[] for _ in queries], selection.need),
            outliers(documents, pooled=self.outliers_of == "request"),
            recompute=self.recompute,
            max_recomputed=self.max_recomputed,
        )

    def selected(self, prompt: SketchedPrompt, queries: Tensor) -> Selection:
        """Select the middle blocks that the question needs."""
        documents = prompt.documents
        local = [d.sketch.local_query for d in documents]
        return select(
            documents,
            personalised(queries, local, bias=self.personalised_bias),
            stable_layers=self.stable_layers(prompt.model),
            normalise=self.normalise,
            limit=self.block_limit([d.grid for d in documents]),
        )

    def merge(self, computed: Tensor, stored: Tensor) -> Tensor:
        return blend(computed, stored) if self.update == "fusion" else computed

    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        grids = [BlockGrid(tokens) for tokens in documents if tokens]
        ends = sum(len(g.indices(g.fixed)) for g in grids)
        return ends + BLOCK * self.block_limit(grids)

    def recomputed_tokens(self, shape: PromptShape) -> int:
        """Return tokens computed anew; a document of at most three blocks is computed whole."""
        if not self.recompute:
            return 0
        return sum(
            tokens if tokens <= 3 * BLOCK else int(self.max_recomputed * tokens)
            for tokens in shape.documents
        )

    def block_limit(self, grids: Sequence[BlockGrid]) -> int:
        """Return the largest number of middle blocks that a layer may hold, of all documents
        together: at least one, unless the method selects none or no document has one."""
        if not self.selection:
            return 0
        most = math.ceil(sum(len(g.middle) for g in grids) / max(1, len(grids)))
        ends = sum(len(g.indices(g.fixed)) for g in grids)
        block = grids[0].block if grids else BLOCK
        room = (self.max_kept * sum(g.tokens for g in grids) - ends) / block
        return min(most, max(1, math.floor(room)))

    def stable_layers(self, model: ModelFacts) -> tuple[int, ...]:
        """Return N*, the calibrated layers; without calibration the last eighth of the layers."""
        last = math.ceil(model.layers / 8)
        return model.stable_layers or tuple(range(model.layers - last, model.layers))


def blend(computed: Tensor, stored: Tensor) -> Tensor:
    """Return θ·computed + (1-θ)·stored, θ in [0, 1]: each token's cosine over all heads (Q7)."""
    a, b = computed.float(), stored.float()
    theta = torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=1).clamp(0, 1)[:, None, None]
    return (theta * a + (1 - theta) * b).to(computed.dtype)
