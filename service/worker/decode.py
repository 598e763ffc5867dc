"""One decode step for all running sequences, whatever their lengths per layer and head.

Projections and MLP run once over the batch; attention reads every sequence's own extents where they
lie, so nothing is padded or copied and a sequence's result does not depend on its neighbours.
Knows no scheduler and no sampler.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

import torch
from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.attention import attend_last
from service.worker.kv_pool import SequenceKV


class Decodable(Protocol):
    """A sequence with at least one generated token."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def position(self) -> int: ...

    @property
    def kv(self) -> SequenceKV | None: ...


def decode_step(adapter: DecoderAdapter, sequences: Many[Decodable]) -> Tensor:
    """Feeds every sequence its last token: logits `[sequences, vocabulary]` fp32."""
    ids = torch.tensor([s.tokens[-1] for s in sequences], device=adapter.device)
    positions = torch.tensor([s.position for s in sequences], device=adapter.device)
    turn = adapter.rope.turn(positions)
    x = adapter.embed(ids)
    for layer in range(adapter.layers):
        q, k, v = adapter.qkv(layer, x)
        q, k = turn(q), turn(k)
        attended = torch.empty_like(q)
        for i, sequence in enumerate(sequences):
            assert sequence.kv is not None
            sequence.kv.append(layer, k[i], v[i])
            _attend(adapter, sequence.kv, layer, q[i], attended[i])
        x = adapter.finish(layer, x, attended.flatten(1))
    return adapter.logits(x)


def _attend(adapter: DecoderAdapter, kv: SequenceKV, layer: int, q: Tensor, out: Tensor) -> None:
    """q `[heads, d]` over what the sequence kept, into out `[heads, d]`."""
    group = adapter.heads // adapter.kv_heads
    for heads, keys, values in kv.heads(layer):
        mine = slice(heads.start * group, heads.stop * group)
        out[mine] = attend_last(q[mine], keys, values, adapter.scale).view(-1, adapter.head_dim)
