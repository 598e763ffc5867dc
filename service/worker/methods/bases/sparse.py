"""The base of methods that read and hold only some tokens of every document.

    loading         the loader reads every document's sketch and its first and last blocks
    question pass   the question runs over S and these blocks: its mean query at every layer
    plan            the method says which tokens each layer holds and which it computes anew
    layers          the blocks that the plan needs are read; its rows and the question are computed

A document that is missing or damaged is computed by itself, as precompute does it, and stored
again. A prompt without any stored document runs as a full prefill.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from service.worker.layout import PromptLayout
from service.worker.methods.bases.fusion import (
    FusionMethod,
    Phase,
    PromptShape,
    Reads,
    dense_phases,
)
from service.worker.methods.layer_view import PrefillResult
from service.worker.methods.sparse.selection import SketchedDocument, SparsePlan
from service.worker.methods.sparse.sketch import BlockGrid
from service.worker.model.model_facts import ModelFacts
from service.worker.steps import Steps


@dataclass(frozen=True)
class SketchedPrompt:
    """What a sparse method knows about a prompt when it makes its plan."""

    layout: PromptLayout
    documents: Sequence[SketchedDocument]  # the non-empty documents in order, each with its sketch
    model: ModelFacts


class SparseLoop(Protocol):
    """Passes over a prompt of which only S and the documents' first and last blocks are read."""

    @property
    def prompt(self) -> SketchedPrompt: ...

    def question_pass(self) -> Steps[Tensor]:
        """Return the mean query of the question before RoPE, `[layers, heads, head_dim]` fp32."""

    def layers(self, method: SparseMethod, plan: SparsePlan) -> Steps[PrefillResult]:
        """Read the blocks that `plan` needs, then compute its rows and the question."""


@dataclass(frozen=True)
class SparseMethod(FusionMethod):
    """Base: holds and computes the tokens that `plan` says."""

    reads: ClassVar[Reads] = Reads.PARTS

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

    def run(self, loop: SparseLoop) -> Steps[PrefillResult]:
        queries = yield from loop.question_pass()
        return (yield from loop.layers(self, self.plan(loop.prompt, queries)))

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
