"""The base of methods that hold and compute only some tokens of a document by sketches; SamKV."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.segment_load import Load
from kvstitch.service.worker.methods.api import (
    ChunkExtra,
    ModelFacts,
    PartialMethod,
    Phase,
    PrefillResult,
    PromptShape,
    Steps,
    dense_phases,
    parameter,
)
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.sequences.prefill_launcher import PartialPrompt
from kvstitch_methods.samkv.partial_loads import sparse_loop, start_loads
from kvstitch_methods.samkv.selection import (
    Selection,
    SketchedPrompt,
    SparsePlan,
    make_plan,
    outliers,
    personalised,
    select,
)
from kvstitch_methods.samkv.sketch import BLOCK, EXTRA, BlockGrid
from kvstitch_methods.samkv.sparse_loop import SparseLayerLoop


@dataclass(frozen=True)
class SparseMethod(PartialMethod):
    """Base: holds and computes the tokens that `plan` says."""

    extra: ClassVar[ChunkExtra | None] = EXTRA

    @abstractmethod
    def plan(self, prompt: SketchedPrompt, queries: Tensor) -> SparsePlan:
        """Say which tokens every layer holds and computes, by the question's mean queries
        `[layers, heads, head_dim]` fp32. Every layer keeps equally many tokens, all of S and
        every document's first and last blocks (`fixed_tokens`), at most `max_kept_tokens` of the
        documents."""

    @abstractmethod
    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        """Return the largest number of document tokens that a layer holds."""

    def merge(self, computed: Tensor, stored: Tensor) -> Tensor:
        """Return the keys (before RoPE) or values to use for tokens that were computed anew."""
        return computed

    # -- implemented by the base ------------------------------------------------------------------

    def start_loads(self, addresses: Sequence[Address | None], loader: Loader) -> list[Load | None]:
        return start_loads(addresses, loader)

    def run(self, prompt: PartialPrompt) -> Steps[PrefillResult]:
        return (yield from self.passes((yield from sparse_loop(prompt))))

    def passes(self, loop: SparseLayerLoop) -> Steps[PrefillResult]:
        """Run the question's pass, then the layers of the plan that it leads to."""
        queries = yield from loop.question_pass()
        return (yield from loop.layers(self.plan(loop.prompt, queries), self.merge))

    def phases(self, shape: PromptShape) -> list[Phase]:
        if not shape.documents:  # nothing is stored: a full prefill
            return list(dense_phases(shape, shape.tokens))
        others = shape.tokens - sum(shape.documents)
        grids = [BlockGrid(tokens) for tokens in shape.documents]
        ends = others + sum(len(grid.indices(grid.fixed)) for grid in grids)
        keys = others + self.max_kept_tokens(shape.documents)
        question = shape.question
        rows = question + shape.uncached + self.recomputed_tokens(shape)
        before, last = range(shape.layers - 1), range(shape.layers - 1, shape.layers)
        return [
            Phase(before, question, question, question, ends),
            Phase(last, question, 0, 0, ends),  # only its queries are wanted
            Phase(before, rows, rows, question, keys),
            Phase(last, rows, 1, question, keys),
        ]


@dataclass(frozen=True)
class SamKV(SparseMethod):
    """Load and keep about a sixth of the documents' KV: their ends and the blocks this question
    needs; recompute the ends. Nothing else is read, held or attended to.

    What is needed is said by its mean queries over the ends and the documents' sketches. Only ends
    and outlier tokens are computed anew (`selection` scores the blocks and plans the tokens).
    specification.md §1.7; "Semantic-aware multi-context KV".
    """

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
