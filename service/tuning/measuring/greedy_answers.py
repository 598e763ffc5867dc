"""Decoding after prefill, with the engine's own decode steps.

Full prefill answers greedily. Every other sequence is fed this answer, to compare logits, and then
answers by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.worker.api import DecoderModel, SequenceKV, decode_step

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
    """Logits of every sequence when it is fed a given answer.

    Args:
        decoder: the model.
        filled: KV and first logits of every sequence.
        n: tokens of the prompt.
        taught: the answer, `[m]`; its last token is not fed.

    Returns:
        `[sequences, m, vocabulary]`.
    """
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

    Each continues from where its own choice first differs from `taught`; KV after that is dropped.
    """
    answers, running = [], []
    for kv, own in zip(kvs, logits.argmax(-1), strict=True):
        differs = torch.nonzero(own != taught).flatten()
        common = int(differs[0]) if len(differs) else len(taught) - 1
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
