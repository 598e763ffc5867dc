"""One layer's work in tiles of rows, with pauses: projections, then attention, then the MLP.

Rows do not depend on one another within these, so tiles change when a row is computed and nothing
else. The size of a tile depends only on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.core.layer_view import ProjectedRows
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import write_rows
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import attend_rows

# On a CPU weights are widened once for a tile: 512 rows take a fifth less than four times 128. What
# takes longer than a decode step is paused within: the MLP, and attention, which with a long prompt
# takes longer than all the rest. On a GPU a tile must still fill it.
TILE_ROWS = {"cpu": 512}
ATTENDED_PAIRS = {"cpu": 1 << 20}  # of rows and keys: 128 rows of 8,192 tokens
ROWS_ELSEWHERE = 2048


def tiles(rows: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, rows)) for a in range(0, rows, size)]


def project(
    adapter: DecoderAdapter, layer: int, x: Tensor, rows: Tensor, kv: tuple[Tensor, Tensor]
) -> Steps[ProjectedRows]:
    """Queries, keys and values of `rows`; keys and values also go into the layer's cache `kv`."""
    k_all, v_all = kv
    parts: list[ProjectedRows] = []
    for tile in tiles(len(rows), TILE_ROWS.get(x.device.type, ROWS_ELSEWHERE)):
        if parts:
            yield None
        at = rows[tile]
        fresh_q, k, v = adapter.qkv(layer, x[tile])
        write_rows(adapter.rope, k_all, v_all, k, v, at)
        parts.append(ProjectedRows(adapter.rope.rotate(fresh_q, at), fresh_q, k, v))
    if len(parts) == 1:
        return parts[0]
    return ProjectedRows(*(torch.cat(part) for part in zip(*parts, strict=True)))


def attend_and_finish(
    adapter: DecoderAdapter,
    layer: int,
    x: Tensor,
    q: Tensor,
    rows: Tensor,
    kv: tuple[Tensor, Tensor],
) -> Steps[Tensor]:
    """Hidden rows after the layer; every key that a row sees is in place in `kv`."""
    attended = yield from _attend(adapter, q, rows, *kv)
    cuts = tiles(len(rows), TILE_ROWS.get(x.device.type, ROWS_ELSEWHERE))
    if len(cuts) == 1:
        return (yield from adapter.finish_steps(layer, x, attended))
    out = torch.empty_like(x)
    for cut in cuts:
        yield None
        out[cut] = yield from adapter.finish_steps(layer, x[cut], attended[cut])
    return out


def _attend(
    adapter: DecoderAdapter, q: Tensor, rows: Tensor, k_all: Tensor, v_all: Tensor
) -> Steps[Tensor]:
    """`[rows, heads * head_dim]`."""
    size, pairs = ROWS_ELSEWHERE, ATTENDED_PAIRS.get(q.device.type)
    if pairs is not None:
        size = max(1, pairs // k_all.shape[1])
    cuts = tiles(len(rows), size)
    if len(cuts) == 1:
        return attend_rows(q, k_all, v_all, rows, adapter.scale)
    last_rows = rows[[cut.stop - 1 for cut in cuts]].tolist()
    out = torch.empty(len(rows), q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    for cut, last in zip(cuts, last_rows, strict=True):
        if cut.start:
            yield None
        k, v = k_all[:, : last + 1], v_all[:, : last + 1]
        out[cut] = attend_rows(q[cut], k, v, rows[cut], adapter.scale)
    return out
