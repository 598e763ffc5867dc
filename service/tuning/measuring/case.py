"""One prompt with stored segments in one prefix mode and codec, to be prefilled by any method.

The prefill is the engine's. The question rows' queries are taken out through the hook with which
eviction methods observe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kvstore import EncodedChunk
from service.tuning.measuring.prompt_ids import Prompt
from service.tuning.measuring.segment_store import SegmentStore
from service.worker.api import Capture, DecoderModel, SequenceKV, prefill_prompt
from service.worker.methods.api import (
    CachedSegment,
    DenseMethod,
    EvictionMethod,
    LayerView,
    PrefillResult,
    PromptLayout,
    attention_probabilities,
)


@dataclass(frozen=True)
class Case:
    """A prompt, ready to be prefilled.

    Attributes:
        decoder: the model.
        layout: the prompt.
        segments: stored KV of its segments; None for empty ones.
        kv: where its KV goes.
        attention_scores: attention that full prefill's question rows pay each token, summed over
            layers, heads and rows, `[n]` fp32. Only the oracle may rank by it.
    """

    decoder: DecoderModel
    layout: PromptLayout
    segments: Sequence[EncodedChunk | None]
    kv: SequenceKV
    attention_scores: Tensor

    @classmethod
    def of(
        cls,
        decoder: DecoderModel,
        prompt: Prompt,
        store: SegmentStore,
        kv: SequenceKV,
        *,
        prefix_mode: str,
        codec: str,
        attention_scores: Tensor,
    ) -> Case:
        segments = store.segments(prompt, prefix_mode, codec)
        layout = PromptLayout.of(
            prompt.system,
            prompt.documents,
            prompt.question,
            uncached=[segment is None for segment in segments],
            prefixes=store.prefixes(prompt, prefix_mode),
            device=decoder.device,
        )
        return cls(decoder, layout, segments, kv, attention_scores)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments if segment is not None)

    def prefill(
        self,
        method: DenseMethod,
        *,
        segments: Sequence[CachedSegment | None] | None = None,
        capture: Capture | None = None,
    ) -> PrefillResult:
        """Prefills the prompt; `segments` replaces the stored KV."""
        cached = self.segments if segments is None else segments
        return prefill_prompt(
            self.decoder,
            self.layout,
            cached,
            method,
            self.kv,
            eviction=QuestionQueries(),
            capture=capture,
        )


class Recipe(Protocol):
    """A way to prefill that needs the prompt to choose its method, or that runs more than once."""

    def run(self, case: Case) -> PrefillResult: ...


@dataclass(frozen=True)
class QuestionQueries(EvictionMethod):
    """Evicts nothing; observes the question rows' queries `[|Q|, heads, d]` of every layer."""

    def applies(self, layout: PromptLayout) -> bool:
        return True  # whatever the budget is, because nothing is evicted

    def observe(self, view: LayerView) -> Tensor:
        # The question is computed at every layer, and its rows are the last ones.
        return view.q[len(view.rows) - len(view.layout.question_rows) :].clone()


@dataclass(frozen=True)
class Filled:
    """The KV and the question's queries after a prefill."""

    decoder: DecoderModel
    layout: PromptLayout
    kv: SequenceKV
    queries: Sequence[Tensor] = field(repr=False)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of K (after RoPE) and V, `[kv_heads, n, d]`; valid until the KV is released."""
        return self.kv.prompt_layer(layer, self.layout.tokens)

    def question_attention(self, layer: int) -> Tensor:
        """Softmax weights `[heads, |Q|, n]` fp32 of the question's rows at a layer."""
        k, _ = self.layer(layer)
        rows = self.layout.question_rows
        rule = self.decoder.rules[layer]
        return attention_probabilities(self.queries[layer], k, rows, self.decoder.scale, rule=rule)

    def attention_scores(self) -> Tensor:
        """The question's attention to each token, summed over layers, heads and rows, `[n]`."""
        total = torch.zeros(self.layout.tokens, device=self.layout.ids.device)
        for layer in range(self.decoder.layers):
            total += self.question_attention(layer).sum((0, 1))
        return total
