"""The base of methods that read and hold only some tokens of every document.

    before        the loader reads every document's sketch and its first and last blocks
    first pass    the question over S and these ends: its mean query at every layer
    plan          the method says which tokens each layer holds and which it computes anew
    layers        the blocks the plan needs are read; then the planned rows and the question run

A document whose sketch or blocks are missing or bad is computed by itself, exactly as precompute
does it, and stored again. A prompt of which nothing is stored runs as a full prefill.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.steps import Steps
from service.worker.methods.bases.cost import Phase, PromptShape, dense_phases
from service.worker.methods.bases.fusion import FusionMethod, Reads
from service.worker.methods.sparse.plan import SparsePlan
from service.worker.methods.sparse.selection import SketchedDocument


@dataclass(frozen=True)
class SketchedPrompt:
    """What a sparse method knows of a prompt before it plans.

    Attributes:
        documents: the non-empty documents in order, each with its sketch.
        model: sizes and calibration of the model.
    """

    layout: PromptLayout
    documents: Sequence[SketchedDocument]
    model: ModelFacts


class SparseLoop(Protocol):
    """Passes over a prompt of which only the documents' ends have been read yet."""

    @property
    def prompt(self) -> SketchedPrompt: ...

    def question_pass(self) -> Steps[Tensor]:
        """Mean query of the question's rows before RoPE, per layer `[layers, heads, d]` fp32."""
        ...

    def layers(self, method: SparseMethod, plan: SparsePlan) -> Steps[PrefillResult]:
        """Read the blocks that `plan` needs, then compute its rows and the question."""
        ...


@dataclass(frozen=True)
class SparseMethod(FusionMethod):
    """Base: hold and compute what `plan` says."""

    reads: ClassVar[Reads] = Reads.PARTS

    @abstractmethod
    def plan(self, prompt: SketchedPrompt, queries: Tensor) -> SparsePlan:
        """What every layer holds and computes.

        Args:
            queries: the question's mean queries `[layers, heads, d]` fp32.

        Returns:
            A plan whose layers all keep equally many tokens, at most `max_kept_tokens` of the
            documents, every document's ends (`fixed_tokens`) and all of S among them.
        """

    @abstractmethod
    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        """Most document tokens that a layer holds, from the documents' lengths in tokens."""

    def merge(self, computed: Tensor, stored: Tensor) -> Tensor:
        """What a token that was computed anew has from then on: keys (before RoPE) or values
        `[m, kv_heads, d]`."""
        return computed

    # -- what the base owns -----------------------------------------------------------------------

    def run(self, loop: SparseLoop) -> Steps[PrefillResult]:
        queries = yield from loop.question_pass()
        return (yield from loop.layers(self, self.plan(loop.prompt, queries)))

    def phases(self, shape: PromptShape) -> list[Phase]:
        if not shape.documents:  # nothing is stored: a full prefill
            return list(dense_phases(shape, shape.tokens))
        left_out = sum(shape.documents) - self.max_kept_tokens(shape.documents)
        keys = shape.tokens - max(0, left_out)
        question, layers = shape.question, shape.layers
        rows = question + shape.uncached + self.recomputed_tokens(shape)
        return [
            Phase(range(layers), question, question, question, keys),
            Phase(range(layers - 1), rows, rows, question, keys),
            Phase(range(layers - 1, layers), rows, 1, question, keys),
        ]
