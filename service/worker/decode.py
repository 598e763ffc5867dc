"""One decode step for all running sequences, whatever their lengths per layer and head.

Projections and MLP run once over the batch; attention runs per sequence over its own extents.
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
    x = adapter.embed(ids)
    for layer in range(adapter.layers):
        q, k, v = adapter.qkv(layer, x)
        q = adapter.rope.rotate(q, positions)
        k = adapter.rope.rotate(k, positions)
        attended = [
            _attend(adapter, sequence, layer, q[i], k[i], v[i])
            for i, sequence in enumerate(sequences)
        ]
        x = adapter.finish(layer, x, torch.stack(attended))
    return adapter.logits(x)


def _attend(
    adapter: DecoderAdapter, sequence: Decodable, layer: int, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Append k, v `[kv_heads, d]` and attend q `[heads, d]` over what the sequence kept."""
    assert sequence.kv is not None
    sequence.kv.append(layer, k, v)
    grouped = q.view(adapter.kv_heads, -1, adapter.head_dim)
    parts = [
        attend_last(grouped[heads].reshape(-1, adapter.head_dim), keys, values, adapter.scale)
        for heads, keys, values in sequence.kv.heads(layer)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
