"""Reads a sequence's KV entries in its pool, and copies them to another pool."""

from __future__ import annotations

from torch import Tensor

from kvstitch.service.worker.kv.pool import KVPool, SequenceKV


def held(sequence: SequenceKV, layer: int) -> list[tuple[Tensor, Tensor]]:
    """Views of the filled keys and values `[length, head_dim]` of every KV head in the pool."""
    pool, runs = sequence.pool, zip(sequence.start[layer], sequence.length[layer], strict=True)
    spans = [slice(int(start), int(start + length)) for start, length in runs]
    return [(pool.k[layer][span], pool.v[layer][span]) for span in spans]


def moved(sequence: SequenceKV, pool: KVPool) -> SequenceKV:
    """Copies the entries to another pool, with the same capacity."""
    kv = pool.reserve(int(sequence.capacity.max()))
    assert kv is not None
    kv.length.copy_(sequence.length)
    kv.positions.update(sequence.positions)
    for layer in range(len(kv.start)):
        for old, new in zip(held(sequence, layer), held(kv, layer), strict=True):
            new[0].copy_(old[0])
            new[1].copy_(old[1])
    return kv
