"""One prompt with stored segments in one prefix mode and codec, to be prefilled by any method.

The prefill is the engine's. The question rows' queries are taken out through the hook with which
eviction methods observe.

Decoding after prefill, with the engine's own decode steps.

Full prefill answers greedily. Every other sequence is fed this answer, to compare logits, and then
answers by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvstitch.kvstore import EncodedChunk
from kvstitch.service.worker.api import DecoderModel, SequenceKV, decode_step
from kvstitch.service.worker.methods.api import (
    DenseMethod,
    EvictionMethod,
    LayerView,
    PrefillResult,
    PromptLayout,
    attention_probabilities,
)
from kvstitch_tune.prompts import Prompt, SegmentStore, prefill_prompt


@dataclass(frozen=True)
class Case:
    """A prompt, ready to be prefilled.

    Attributes:
        decoder: The model.
        layout: The prompt.
        segments: Stored KV of its segments; None for empty ones.
        kv: Where its KV goes.
    """

    decoder: DecoderModel
    layout: PromptLayout
    segments: Sequence[EncodedChunk | None]
    kv: SequenceKV

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
        return cls(decoder, layout, segments, kv)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments if segment is not None)

    def prefill(self, method: DenseMethod) -> PrefillResult:
        """Prefills the prompt."""
        return prefill_prompt(
            self.decoder, self.layout, self.segments, method, self.kv, eviction=QuestionQueries()
        )


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

    def question_attention(self, layer: int) -> Tensor:
        """Return softmax weights `[heads, |Q|, n]` fp32 of the question's rows at a layer."""
        k, _ = self.kv.prompt_layer(layer, self.layout.tokens)
        rows = self.layout.question_rows
        rule = self.decoder.rules[layer]
        return attention_probabilities(self.queries[layer], k, rows, self.decoder.scale, rule=rule)


NEXT = 32
"""How many answer tokens after the first are compared."""


@dataclass
class Answering:
    """A prefilled prompt of `prompt_tokens` tokens, and the answer tokens so far."""

    kv: SequenceKV
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    lora: str = ""

    @property
    def position(self) -> int:
        return self.prompt_tokens + len(self.tokens) - 1


def greedy(decoder: DecoderModel, kv: SequenceKV, n: int, first: Tensor) -> Tensor:
    """Full prefill's logits `[m, vocabulary]` along its own greedy answer.

    The last logits predict the end token, or are those after `NEXT` tokens.
    """
    answering, logits = Answering(kv, n), [first]
    while len(logits) <= NEXT:
        answering.tokens.append(int(logits[-1].argmax()))
        if answering.tokens[-1] in decoder.end_ids:
            break
        logits.append(decode_step(decoder, [answering])[0])
    return torch.stack(logits)


def forced(
    decoder: DecoderModel, filled: Sequence[tuple[SequenceKV, Tensor]], n: int, taught: Tensor
) -> Tensor:
    """Return logits of every sequence when it is fed a given answer."""
    answering = [Answering(kv, n) for kv, _ in filled]
    logits = [torch.stack([first for _, first in filled])]
    for token in taught[:-1].tolist():
        for each in answering:
            each.tokens.append(token)
        logits.append(decode_step(decoder, answering))
    return torch.stack(logits, dim=1)


def free(
    decoder: DecoderModel,
    kvs: Sequence[SequenceKV],
    n: int,
    taught: Tensor,
    logits: Tensor,
) -> list[list[int]]:
    """Greedy answers of the sequences that `forced` ran, without the end token.

    Each continues from where its own choice first differs from `taught`; KV after that is dropped,
    which cannot be done with states.
    """
    answers, running = [], []
    for kv, own in zip(kvs, logits.argmax(-1), strict=True):
        differs = torch.nonzero(own != taught).flatten()
        common = int(differs[0]) if len(differs) else len(taught) - 1
        assert common == len(taught) - 1 or not decoder.mixers, "states cannot be taken back"
        kv.set_length(n + common)
        each = Answering(kv, n, [*taught[:common].tolist(), int(own[common])])
        answers.append(each)
        if len(differs):
            running.append(each)
    while running := [each for each in running if _goes_on(decoder, each)]:
        for each, step in zip(running, decode_step(decoder, running), strict=True):
            each.tokens.append(int(step.argmax()))
    return [[t for t in each.tokens if t not in decoder.end_ids] for each in answers]


def _goes_on(decoder: DecoderModel, each: Answering) -> bool:
    return each.tokens[-1] not in decoder.end_ids and len(each.tokens) <= NEXT
