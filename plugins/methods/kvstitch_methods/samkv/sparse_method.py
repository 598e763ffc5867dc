"""The base of methods that hold and compute only some tokens of every document, by sketches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstitch_methods.samkv.partial_loads import sparse_loop, start_loads
from kvstitch_methods.samkv.selection import SketchedPrompt, SparsePlan
from kvstitch_methods.samkv.sketch import EXTRA, BlockGrid
from kvstitch_methods.samkv.sparse_loop import SparseLayerLoop
from service.worker.loading.loader import Loader
from service.worker.loading.segment_load import Load
from service.worker.methods.api import (
    ChunkExtra,
    PartialMethod,
    Phase,
    PrefillResult,
    PromptShape,
    Steps,
    dense_phases,
)
from service.worker.model.addressing import Address
from service.worker.sequences.prefill_launcher import PartialPrompt


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
