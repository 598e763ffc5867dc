"""One decode step for all running sequences, whatever their lengths per layer and head.

Projections and MLP run once over the batch; attention reads every sequence's own extents where they
lie, so nothing is padded or copied and a sequence's result does not depend on its neighbours. What
changes from step to step is numbers in one tensor: on a GPU the operations themselves are recorded
once and played again (`service.worker.forward.decode_graphs`). Knows no scheduler and no sampler.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from service.worker.kernels.cpu import ragged_attention
from service.worker.kernels.gpu import ragged_attention_gpu
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import attend_last


class Decodable(Protocol):
    """A sequence with at least one generated token."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def position(self) -> int: ...

    @property
    def kv(self) -> SequenceKV | None: ...


@dataclass(frozen=True)
class Batch:
    """What a step reads besides weights and KV, in one tensor that goes to a device in one copy.

    numbers: int64, `ids [size] ‖ positions [size] ‖ runs [layers, 2, size · kv_heads]`; a run is
    where a KV head's entries start in its layer's pool and how many they are, the one of the token
    fed now included; longest: no run is longer.
    """

    numbers: Tensor
    size: int
    layers: int
    longest: int

    @classmethod
    def of(cls, sequences: Many[Decodable], size: int = 0) -> Batch:
        """Feeds every sequence its last token, for whose KV each makes room. Up to `size` rows are
        added that belong to nobody: they write the pool's spare row and see nothing else."""
        held = []
        for sequence in sequences:
            assert sequence.kv is not None
            sequence.kv.grow()
            held.append(sequence.kv)
        added = max(0, size - len(held))
        runs = torch.stack([torch.stack([kv.start, kv.length]) for kv in held], 2).transpose(0, 1)
        layers, _, _, heads = runs.shape
        nobodys = torch.tensor([held[0].pool.spare, 1]).view(1, 2, 1, 1)
        runs = torch.cat([runs, nobodys.expand(layers, 2, added, heads)], 2)
        rows = [(s.tokens[-1], s.position) for s in sequences] + [(0, 0)] * added
        numbers = torch.cat([torch.tensor(rows).t().flatten(), runs.flatten()])
        return cls(numbers, len(rows), layers, int(runs[:, 1].max()))

    def to(self, device: torch.device) -> Batch:
        return replace(self, numbers=self.numbers.to(device))

    @cached_property
    def ids(self) -> Tensor:
        return self.numbers[: self.size]

    @cached_property
    def positions(self) -> Tensor:
        return self.numbers[self.size : 2 * self.size]

    @cached_property
    def runs(self) -> Tensor:
        return self.numbers[2 * self.size :].view(self.layers, 2, -1)


def decode_step(adapter: DecoderAdapter, sequences: Many[Decodable]) -> Tensor:
    """Feeds every sequence its last token: logits `[sequences, vocabulary]` fp32. All of one
    pool."""
    assert sequences[0].kv is not None
    pool = sequences[0].kv.pool
    return compute(adapter, pool, Batch.of(sequences).to(adapter.device))


def compute(adapter: DecoderAdapter, pool: KVPool, batch: Batch) -> Tensor:
    """The step of a batch on the adapter's device: logits `[size, vocabulary]` fp32. Computed again
    it gives the same and leaves the same."""
    rotate = adapter.rope.at(batch.positions)
    written = batch.runs.sum(1) - 1
    x = adapter.embed(batch.ids)
    for layer in range(adapter.layers):
        q, k, v = adapter.qkv(layer, x, batch=True)
        q, k = rotate(q), rotate(k)
        pool.write(layer, written[layer], k.flatten(0, 1), v.flatten(0, 1))
        attended = _attend(adapter, pool, layer, q, batch).flatten(1)
        x = adapter.finish(layer, x, attended, batch=True)
    return adapter.logits(x, batch=True)


def stays_on_device(adapter: DecoderAdapter, pool: KVPool) -> bool:
    """Whether a step's operations are on a GPU and the same whatever the numbers of its batch."""
    if adapter.device.type != "cuda":
        return False
    q = torch.empty(1, adapter.heads, adapter.head_dim, dtype=adapter.dtype, device=adapter.device)
    return ragged_attention_gpu.supports(q, pool.k[0], adapter.heads // adapter.kv_heads)


def _attend(adapter: DecoderAdapter, pool: KVPool, layer: int, q: Tensor, batch: Batch) -> Tensor:
    """q `[size, heads, d]` over what every sequence holds, `[size, heads, d]`."""
    k, v, runs = pool.k[layer], pool.v[layer], batch.runs[layer]
    group = adapter.heads // adapter.kv_heads
    if ragged_attention_gpu.supports(q, k, group):
        return ragged_attention_gpu.attend(q, k, v, runs, batch.longest, adapter.scale)
    kernel = ragged_attention.kernel()
    if kernel is not None and ragged_attention.supports(q, k, group):
        return kernel.attend(q, k, v, runs, adapter.scale)
    return _attend_one_by_one(q, k, v, runs, adapter.scale)


def _attend_one_by_one(q: Tensor, k: Tensor, v: Tensor, runs: Tensor, scale: float) -> Tensor:
    """With torch's kernel: a sequence's heads at once where they lie equally far apart and are
    equally long, as they do before eviction."""
    out = torch.empty_like(q)
    starts, lengths = runs.view(2, len(q), -1).tolist()
    for asked, found, start, length in zip(q, out, starts, lengths, strict=True):
        heads, d = len(start), q.shape[2]
        apart = start[-1] - start[-2] if heads > 1 else length[0]
        even = start == [start[0] + head * apart for head in range(heads)]
        if even and len(set(length)) == 1:
            spans = [(slice(0, len(asked)), start[0], length[0], heads)]
        else:
            group = len(asked) // heads
            spans = [
                (slice(head * group, (head + 1) * group), start[head], length[head], 1)
                for head in range(heads)
            ]
        for mine, first, n, together in spans:
            shape, strides = (together, n, d), (apart * d, d, 1)
            keys, values = (x.as_strided(shape, strides, first * d) for x in (k, v))
            found[mine] = attend_last(asked[mine], keys, values, scale).view(-1, d)
    return out
