"""One layer's work in tiles of rows, with a pause between two: projections, then attention and MLP.

Rows do not depend on one another there, so tiles change when a row is computed and nothing else.
Their size depends on nothing but the device: many rows on one that is only fast with many. Knows no
method and no prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.attention import attend_rows
from service.worker.place import write_rows
from service.worker.steps import Steps

# About a decode step's work on a CPU; on a GPU a tile must still fill it.
TILE_ROWS = {"cpu": 128}
TILE_ROWS_ELSEWHERE = 2048


def tiles(rows: int, device: torch.device) -> list[slice]:
    size = TILE_ROWS.get(device.type, TILE_ROWS_ELSEWHERE)
    return [slice(a, a + size) for a in range(0, rows, size)]


def project(
    adapter: DecoderAdapter, layer: int, x: Tensor, rows: Tensor, k_all: Tensor, v_all: Tensor
) -> Steps[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Queries after RoPE and before, keys before RoPE, values of `rows`; K, V go into the cache."""
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for tile in tiles(len(rows), x.device):
        if parts:
            yield None
        at = rows[tile]
        fresh_q, k, v = adapter.qkv(layer, x[tile])
        write_rows(k_all, v_all, adapter.rope.rotate(k, at), v, at)
        parts.append((adapter.rope.rotate(fresh_q, at), fresh_q, k, v))
    if len(parts) == 1:
        return parts[0]
    q, fresh_q, k, v = (torch.cat(part) for part in zip(*parts, strict=True))
    return q, fresh_q, k, v


def attend_and_finish(
    adapter: DecoderAdapter,
    layer: int,
    x: Tensor,
    q: Tensor,
    rows: Tensor,
    k_all: Tensor,
    v_all: Tensor,
) -> Steps[Tensor]:
    """Hidden rows after the layer; every key that a row sees is in place."""
    cuts = tiles(len(rows), x.device)
    if len(cuts) == 1:
        attended = attend_rows(q, k_all, v_all, rows, adapter.scale)
        return adapter.finish(layer, x, attended)
    last_rows = rows[[min(tile.stop, len(rows)) - 1 for tile in cuts]].tolist()
    out = torch.empty_like(x)
    for tile, last in zip(cuts, last_rows, strict=True):
        if tile.start:
            yield None
        seen = slice(0, last + 1)
        attended = attend_rows(q[tile], k_all[:, seen], v_all[:, seen], rows[tile], adapter.scale)
        out[tile] = adapter.finish(layer, x[tile], attended)
    return out
