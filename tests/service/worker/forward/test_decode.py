"""A decode step over several sequences gives each what it would get alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kvstitch.service.worker.forward.decode import decode_step
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from tests.service.worker.tiny import Tiny, assert_close

LENGTHS = (3, 9, 9, 40, 1)
STEPS = 3


@dataclass
class Running:
    kv: SequenceKV
    position: int
    tokens: list[int] = field(default_factory=list)
    lora: str = ""


def filled(model: Any, pool: KVPool, length: int, *, ragged: bool, room: int = STEPS) -> Running:
    """Random KV; `ragged` keeps another number of entries per layer and KV head."""
    kv = pool.reserve(length + room)
    assert kv is not None
    random = torch.Generator().manual_seed(length)
    for layer in range(model.decoder.layers):
        for store in kv.prompt_layer(layer, length):
            store.copy_(torch.randn(store.shape, generator=random))
    kv.set_length(length)
    if ragged:
        for layer in range(model.decoder.layers):
            kept = [
                torch.arange((layer + head) % 2, length, 1 + head)
                if length > 2
                else torch.arange(length)
                for head in range(model.decoder.kv_heads)
            ]
            kv.keep(layer, kept, room)
            kv.remember(layer, kept, length)
    return Running(kv, length)


def decoded(model: Any, lengths: tuple[int, ...], ragged: bool) -> torch.Tensor:
    """Logits `[steps, sequences, vocabulary]` of the same tokens fed to every sequence."""
    decoder = model.decoder
    pool = KVPool(
        decoder.layers, decoder.kv_heads, decoder.head_dim, sum(lengths) + STEPS * len(lengths),
        dtype=decoder.dtype, device=decoder.device,
    )  # fmt: skip
    running = [
        filled(model, pool, n, ragged=ragged and (i % 2 == 1 or n > 30))
        for i, n in enumerate(lengths)
    ]
    out = []
    for step in range(STEPS):
        for sequence in running:
            sequence.tokens.append(5 + step)
        out.append(decode_step(decoder, running))
        for sequence in running:
            sequence.position += 1
    return torch.stack(out)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_sequence_does_not_depend_on_its_batch(any_family: Tiny, ragged: bool) -> None:
    together = decoded(any_family, (*LENGTHS, 40), ragged)
    again = decoded(any_family, (40, 40), ragged)
    assert_close("decoding in a batch", together[:, 3], again[:, 1])
    assert_close("decoding in a batch", together[:, 5], again[:, 0])


def test_equal_sequences_decode_equally(model: Tiny) -> None:
    out = decoded(model, (9, 4, 9), ragged=False)
    assert_close("decoding in a batch", out[:, 0], out[:, 2])
    assert float((out[:, 0] - out[:, 1]).abs().max()) > 1e-3
