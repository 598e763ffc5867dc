"""Sequences with random KV in a pool, as if their prompts had been prefilled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvstitch.service.worker.api import BatchDecoder, DecoderModel, KVPool, SequenceKV
from kvstitch_tune.prompts import kv_pool


@dataclass
class Context:
    """A sequence in the form that `BatchDecoder.step` takes."""

    kv: SequenceKV
    position: int
    tokens: list[int] = field(default_factory=lambda: [1])
    lora: str = ""


def spread(tokens: int, batch: int) -> list[int]:
    """Different lengths around `tokens` for the sequences of a batch."""
    return [tokens + max(1, tokens // 64) * (2 * i - batch + 1) for i in range(batch)]


def pool_for(decoder: DecoderModel, lengths: Sequence[int], room: int) -> KVPool:
    """A pool for contexts of these lengths, each with `room` for more tokens."""
    return kv_pool(decoder, sum(lengths) + room * len(lengths))


def filled(pool: KVPool, tokens: int, room: int) -> Context:
    """A context of `tokens` tokens of random KV, with `room` for more."""
    kv = pool.reserve(tokens + room)
    assert kv is not None
    for layer in range(len(kv.start)):
        for part in kv.prompt_layer(layer, tokens):
            part.normal_()
    kv.set_length(tokens)
    return Context(kv, tokens)


def evict(context: Context, share: float, room: int, seed: int) -> None:
    """Keeps `share` of the KV entries on average, half to one and a half of it per head."""
    random = torch.Generator().manual_seed(seed)
    tokens = context.position
    for layer, start in enumerate(context.kv.start):
        shares = share * (torch.rand(len(start), generator=random) + 0.5)
        kept = [
            torch.randperm(tokens, generator=random)[: int(s * tokens)].sort().values
            for s in shares.clamp(max=1).tolist()
        ]
        context.kv.keep(layer, kept, room)


def decode(decoding: BatchDecoder, contexts: list[Context], steps: int) -> None:
    """Decodes `steps` tokens greedily for every context."""
    for _ in range(steps):
        tokens = decoding.step(contexts).argmax(-1).tolist()
        for context, token in zip(contexts, tokens, strict=True):
            context.tokens.append(token)
            context.position += 1
