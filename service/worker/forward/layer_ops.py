"""The work of one layer in tiles of rows, with pauses: projections, then attention, then the MLP.

Within each of these, rows do not depend on one another, so tiles only change when a row is
computed. The size of a tile depends only on the device.

The functions take rows of a prompt, ascending `[m]`, with their hidden states before the layer, x
`[m, hidden]`, their queries after RoPE, q `[m, heads, head_dim]`, and the keys and values of the
layer, `[kv_heads, n, head_dim]`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import write_and_rotate
from kvstitch.service.worker.methods.layer_view import ProjectedRows, Replaced
from kvstitch.service.worker.model.attention import attend_rows
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.steps import Steps

# Rows of a tile. On a CPU, weights are converted to fp32 once per tile: 512 rows take a fifth less
# time than four times 128 rows. There are pauses within what takes longer than a decode step: the
# MLP, and attention, which takes longer than all the rest in a long prompt.
TILE_ROWS = {"cpu": 512}
# (row, key) pairs of an attention tile, for example 128 rows over 8,192 tokens on a CPU, and all
# rows of 11,500 tokens on a GPU, where that takes some milliseconds.
ATTENDED_PAIRS = {"cpu": 1 << 20}
PAIRS_ELSEWHERE = 1 << 27
# Rows of a tile on a GPU, about: tiles there are even, because each reads all weights of the layer,
# and 48 rows behind 2,048 would read them for nearly nothing.
ROWS_ELSEWHERE = 2048


class SparseRows(NamedTuple):
    """The first rows of a layer, which see only some keys."""

    number: int
    keys: Tensor


def tile_rows(device: torch.device) -> int:
    """Return how many rows are computed at once, about."""
    return TILE_ROWS.get(device.type, ROWS_ELSEWHERE)


def row_tiles(rows: int, device: torch.device) -> list[slice]:
    """Cut so many rows into those that are computed at once."""
    size = TILE_ROWS.get(device.type)
    if size is None:
        size = -(-rows // max(1, round(rows / ROWS_ELSEWHERE)))
    return tiles(rows, max(1, size))


def tiles(rows: int, size: int) -> list[slice]:
    """Cut so many rows into neighbouring slices of at most `size`."""
    return [slice(a, min(a + size, rows)) for a in range(0, rows, size)]


def project(
    decoder: DecoderModel,
    layer: int,
    x: Tensor,
    rows: Tensor,
    kv: tuple[Tensor, Tensor],
    *,
    keep: bool = False,
) -> Steps[ProjectedRows]:
    """Compute queries, keys and values of `rows`, and write the latter two to the cache."""
    fresh_q, k, v = yield from qkv(decoder, layer, x)
    replaced = Replaced(k.new_empty(k.shape), v.new_empty(v.shape)) if keep else None
    q = write_and_rotate(decoder.ropes[layer], kv, fresh_q, k, v, rows, replaced=replaced)
    return ProjectedRows(q, fresh_q, k, v, replaced)


def qkv(decoder: DecoderModel, layer: int, x: Tensor) -> Steps[tuple[Tensor, Tensor, Tensor]]:
    """Project x `[m, hidden]` to q, k and v before RoPE, each `[m, heads, head_dim]`."""
    cuts = row_tiles(len(x), x.device)
    if len(cuts) == 1:
        return decoder.qkv(layer, x)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for cut in cuts:
        if parts:
            yield None
        parts.append(decoder.qkv(layer, x[cut]))
    q, k, v = (torch.cat(part) for part in zip(*parts, strict=True))
    return q, k, v


def attend_and_finish(
    decoder: DecoderModel,
    layer: int,
    x: Tensor,
    q: Tensor,
    rows: Tensor,
    kv: tuple[Tensor, Tensor],
    *,
    sparse: SparseRows | None = None,
    known: Tensor | None = None,
) -> Steps[Tensor]:
    """Compute the rest of a layer after its projections."""
    few = SparseRows(0, rows[:0]) if sparse is None else sparse
    if not few.number:
        attended = yield from attend(decoder, layer, q, rows, *kv, known=known)
    else:
        others = rows[few.number :]
        known = None if known is None else known[few.number :]
        attended = yield from attend(decoder, layer, q[few.number :], others, *kv, known=known)
        k, v = kv[0][:, few.keys], kv[1][:, few.keys]
        first = attend_rows(
            q[: few.number], k, v, rows[: few.number], decoder.scale,
            key_rows=few.keys, rule=decoder.rules[layer],
        )  # fmt: skip
        attended = torch.cat([first, attended])
    return (yield from finish(decoder, layer, x, attended))


def finish(decoder: DecoderModel, layer: int, x: Tensor, attended: Tensor) -> Steps[Tensor]:
    """Compute the rest of a layer after its attention; return hidden states `[m, hidden]`."""
    cuts = row_tiles(len(x), x.device)
    if len(cuts) == 1:
        return (yield from decoder.finish_steps(layer, x, attended))
    out = torch.empty_like(x)
    for cut in cuts:
        yield None
        out[cut] = yield from decoder.finish_steps(layer, x[cut], attended[cut])
    return out


def attend(
    decoder: DecoderModel,
    layer: int,
    q: Tensor,
    rows: Tensor,
    k_all: Tensor,
    v_all: Tensor,
    *,
    known: Tensor | None = None,
) -> Steps[Tensor]:
    """Return attention of the rows, `[m, heads * head_dim]`."""
    rule = decoder.rules[layer]
    pairs = ATTENDED_PAIRS.get(q.device.type, PAIRS_ELSEWHERE)
    cuts = tiles(len(rows), max(1, pairs // k_all.shape[1]))
    if len(cuts) == 1:
        last = int(known[0]) if known is not None and len(known) == 1 else None
        return attend_rows(q, k_all, v_all, rows, decoder.scale, last=last, rule=rule)
    last_rows = [cut.stop - 1 for cut in cuts]
    if len(rows) < k_all.shape[1]:
        last_rows = (rows if known is None else known)[last_rows].tolist()
    out = torch.empty(len(rows), q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    for cut, last in zip(cuts, last_rows, strict=True):
        if cut.start:
            yield None
        k, v = k_all[:, : last + 1], v_all[:, : last + 1]
        out[cut] = attend_rows(q[cut], k, v, rows[cut], decoder.scale, rule=rule)
    return out
