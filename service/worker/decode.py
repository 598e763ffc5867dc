"""One decode step for all running sequences, whatever their lengths per layer and head.

Projections and MLP run once over the batch; attention reads every sequence's own extents where they
lie, so nothing is padded or copied and a sequence's result does not depend on its neighbours.
Knows no scheduler and no sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

import torch
from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.attention import attend_last
from service.worker.kernels import ragged_attention, ragged_attention_gpu
from service.worker.kv_pool import SequenceKV

Attend = Callable[[Tensor, Tensor, Tensor, Many[int], Many[int], float], Tensor]
"""q, the pool's k and v, the runs' starts and lengths, scale (`ragged_attention.Kernel.attend`)."""


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
        runs = []
        for i, sequence in enumerate(sequences):
            assert sequence.kv is not None
            sequence.kv.append(layer, k[i], v[i])
            runs.append(sequence.kv)
        x = adapter.finish(layer, x, _attend(adapter, layer, q, runs).flatten(1))
    return adapter.logits(x)


def _attend(adapter: DecoderAdapter, layer: int, q: Tensor, held: Many[SequenceKV]) -> Tensor:
    """q `[sequences, heads, d]` over what every sequence holds, `[sequences, heads, d]`."""
    group = adapter.heads // adapter.kv_heads
    pool = held[0].pool
    k, v = pool.k[layer], pool.v[layer]
    kernel = _kernel(q, k, group) if all(kv.pool is pool for kv in held) else None
    if kernel is not None:
        starts = [start for kv in held for start in kv.layers[layer].start]
        lengths = [length for kv in held for length in kv.layers[layer].length]
        return kernel(q, k, v, starts, lengths, adapter.scale)
    out = torch.empty_like(q)
    for kv, asked, found in zip(held, q, out, strict=True):
        for heads, keys, values in kv.heads(layer):
            mine = slice(heads.start * group, heads.stop * group)
            attended = attend_last(asked[mine], keys, values, adapter.scale)
            found[mine] = attended.view(-1, adapter.head_dim)
    return out


def _kernel(q: Tensor, k: Tensor, group: int) -> Attend | None:
    """What attends over all runs of a pool in one call, if anything here does."""
    if ragged_attention_gpu.serves(q, k, group):
        return ragged_attention_gpu.attend
    kernel = ragged_attention.kernel()
    serves = kernel is not None and ragged_attention.serves(q, k, group)
    return kernel.attend if kernel is not None and serves else None
