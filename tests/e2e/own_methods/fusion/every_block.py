"""Holds every k-th block between the documents' ends: a sparse method of the operator's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.worker.methods.api import PromptShape, parameter
from kvstitch_methods.samkv.selection import SketchedPrompt, SparsePlan
from kvstitch_methods.samkv.sketch import BlockGrid
from kvstitch_methods.samkv.sparse_method import SparseMethod


@dataclass(frozen=True)
class Method(SparseMethod):
    """Hold the ends of every document and every k-th block between them; recompute nothing."""

    every: int = parameter(3, "one block in this many", ge=1)

    def plan(self, prompt: SketchedPrompt, queries: Tensor) -> SparsePlan:
        kept = list(range(prompt.layout.segments[0].tokens))
        for document in prompt.documents:
            kept += [document.start + token for token in self._kept(document.grid)]
        layers = range(prompt.model.layers)
        return SparsePlan(kept=[kept for _ in layers], fresh=[[] for _ in layers])

    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        return sum(len(self._kept(BlockGrid(tokens))) for tokens in documents)

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return 0

    def _kept(self, grid: BlockGrid) -> list[int]:
        return grid.indices(sorted({*grid.fixed, *grid.middle[:: self.every]}))
