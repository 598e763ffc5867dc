"""What each Triton kernel of the worker computes, in torch.

The arguments are those that the kernel gets at its launch; strides and block sizes are not needed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def rotate_rows(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *_: Any, **__: Any
) -> None:
    out.copy_(_turned(x, cos[positions], sin[positions]))


def write_rows(
    q: Tensor, k: Tensor, v: Tensor, rotated: Tensor, k_all: Tensor, v_all: Tensor,
    positions: Tensor, into: Tensor, cos: Tensor, sin: Tensor, old_k: Tensor, old_v: Tensor,
    extent: Tensor, *_: Any, QUERIES: int, SCATTERED: bool, KEPT: bool, PLACED: bool, **__: Any,
) -> None:  # fmt: skip
    if QUERIES:
        rotated.copy_(_turned(q, cos[positions], sin[positions]))
    if PLACED:
        k_all, v_all = (_placed(x, extent, k.shape[1]) for x in (k_all, v_all))
        given = int(extent[3])
        k, v, positions = k[:given], v[:given], positions[:given]
    if KEPT:
        old_k[: len(k)] = k_all[:, positions].transpose(0, 1)
        old_v[: len(k)] = v_all[:, positions].transpose(0, 1)
    k = _turned(k, cos[positions], sin[positions])
    if SCATTERED:
        k_all.view(-1, k.shape[-1])[into] = k.flatten(0, 1)
        v_all.view(-1, v.shape[-1])[into] = v.flatten(0, 1)
    else:
        k_all[:, positions], v_all[:, positions] = k.transpose(0, 1), v.transpose(0, 1)


def place_rows(
    values: Tensor, scales: Tensor, programs: Tensor, positions: Tensor, cos: Tensor, sin: Tensor,
    k_out: Tensor, v_out: Tensor, starts: Tensor, out_head: int, out_row: int, staged_layer: int,
    layer: int, *_: Any, GRID: tuple[int, ...], SCALED: bool, **__: Any,
) -> None:  # fmt: skip
    heads, layers = GRID[1:]
    d = 2 * cos.shape[1]
    for number in range(layers):
        start = int(starts[layer + number])
        for k, v, k_scale, v_scale, first, row, rows, stride in programs.tolist():
            skipped = (staged_layer + number) * stride
            span, end = slice(first, first + rows), (first + rows) * heads
            at = positions[row : row + rows]
            for at_x, at_scale, out in ((k, k_scale, k_out), (v, v_scale, v_out)):
                x = values[at_x + skipped :][: end * d].view(-1, heads, d)[span]
                if SCALED:
                    by = scales[at_scale + skipped // 2 :][:end].view(-1, heads)[span].float()
                    x = (x.float() * by[..., None]).to(out.dtype)
                if out is k_out:
                    x = _turned(x, cos[at], sin[at])
                offset = out.storage_offset() + start + row * out_row
                into = out.as_strided((heads, rows, d), (out_head, out_row, 1), offset)
                into.copy_(x.transpose(0, 1))


def multiply_gated(x: Tensor, out: Tensor, *_: Any, **__: Any) -> None:
    gate, up = x.chunk(2, -1)
    out.copy_(F.silu(gate) * up)


def add_and_normalise(
    x: Tensor, added: Tensor, weight: Tensor, total: Tensor, normed: Tensor, width: int,
    epsilon: float, *_: Any, ADDED: bool, **__: Any,
) -> None:  # fmt: skip
    if ADDED:
        total.copy_(x + added)
    normed.copy_(F.rms_norm(total if ADDED else x, weight.shape, weight, epsilon))


def shift_rows(
    k_all: Tensor, v_all: Tensor, fresh_k: Tensor, fresh_v: Tensor, old_k: Tensor, old_v: Tensor,
    rows: Tensor, programs: Tensor, weights: Tensor, cos: Tensor, sin: Tensor, extent: Tensor,
    number: int, first_row: int, *_: Any, OF_KEYS: bool, OF_VALUES: bool, PLACED: bool,
    COLUMNS: int, **__: Any,
) -> None:  # fmt: skip
    if PLACED:
        k_all, v_all = (_placed(x, extent, fresh_k.shape[1]) for x in (k_all, v_all))
    places = programs[number * COLUMNS :]
    for row, size, first, count in programs[: number * COLUMNS].view(-1, COLUMNS).tolist():
        if not size:  # fills up a recording
            continue
        at, span = places[first : first + count], torch.arange(row, row + size)
        by = weights[span - first_row][:, None, None]
        c, s = cos[rows[at]][:, None], sin[rows[at]][:, None]
        low, high = (x * (1 / (c * c + s * s)) for x in old_k[at].float().chunk(2, -1))
        back = torch.cat([low * c + high * s, high * c - low * s], -1)
        if OF_KEYS:
            mean = (fresh_k[at].float() - back).mean(0).to(k_all.dtype)
            k_all[:, span] += _turned(mean * by, cos[span], sin[span]).transpose(0, 1)
        if OF_VALUES:
            mean = (fresh_v[at].float() - old_v[at].float()).mean(0).to(v_all.dtype)
            v_all[:, span] += (mean * by).transpose(0, 1)


def attend_tile(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, out: Tensor, logsums: Tensor, sums: Tensor,
    highest: Tensor, totals: Tensor, extent: Tensor, m: int, span: int, scale: float, *_: Any,
    SPANS: bool, LOGSUMS: bool, PLACED: bool, **__: Any,
) -> None:  # fmt: skip
    if PLACED:
        k, v = (_placed(x, extent, len(k)) for x in (k, v))
        rows = rows.clone()
        rows[int(extent[3]) :] = -1
    products = _products(q, k, scale)
    seen = torch.arange(k.shape[1]) <= rows[:, None]
    number, size = (len(sums), span) if SPANS else (1, k.shape[1])
    for part, keys in enumerate(slice(at * size, (at + 1) * size) for at in range(number)):
        scores = products[..., keys].masked_fill(~seen[:, keys], -torch.inf)
        if not scores.shape[2]:
            continue  # what lies behind the prompt
        most = scores.max(-1).values
        weights = torch.exp2(scores - most.clamp(min=-1e30)[..., None])
        total = weights.sum(-1)
        summed = weights.view(len(k), -1, scores.shape[2]) @ v[:, keys].float()
        summed = summed.view(*total.shape, -1).transpose(0, 1)
        if SPANS:
            sums[part], highest[part], totals[part] = summed, most.t(), total.t()
            continue
        out.copy_((summed / total.t()[..., None]).nan_to_num(0.0))
        if LOGSUMS:
            logsums.copy_((most + total.log2()) * math.log(2))


def join_spans(
    sums: Tensor, highest: Tensor, totals: Tensor, rows: Tensor, out: Tensor, logsums: Tensor,
    extent: Tensor, m: int, span: int, spans: int, *_: Any, LOGSUMS: bool, PLACED: bool, **__: Any,
) -> None:  # fmt: skip
    given = torch.arange(m) < (int(extent[3]) if PLACED else m)
    read = (torch.arange(spans)[:, None] * span <= rows) & given
    reached = highest.masked_fill(~read[..., None], -torch.inf)
    most = reached.max(0).values.clamp(min=-1e30)
    share = torch.exp2(reached - most)
    total = torch.where(read[..., None], share * totals, 0.0).sum(0)
    found = torch.where(read[..., None, None], share[..., None] * sums, 0.0).sum(0)
    out.copy_((found / total[..., None]).nan_to_num(0.0))
    if LOGSUMS:
        logsums.copy_(((most + total.log2()) * math.log(2)).t())


def score_block(
    q: Tensor, k: Tensor, rows: Tensor, weights: Tensor, logsums: Tensor, scores: Tensor,
    extent: Tensor, m: int, n: int, scale: float, *_: Any, PLACED: bool, **__: Any,
) -> None:  # fmt: skip
    if PLACED:
        k, m = _placed(k, extent, len(k)), int(extent[3])
    stop = k.shape[1]
    seen = torch.arange(stop) <= rows[:m, None]
    found = (_products(q[:m], k, scale) - logsums[:, :m, None]).exp() * weights[:m, None]
    by_head = found.masked_fill(~seen, 0.0).sum(1)
    scores[:, :stop] = by_head.view(len(k), -1, stop).sum(1)
    scores[:, stop:] = 0.0


def _placed(pool: Tensor, extent: Tensor, kv_heads: int) -> Tensor:
    """The cache of a prompt `[kv_heads, n, d]` in a layer of a pool."""
    start, of_head, tokens, _ = extent.tolist()
    d = pool.shape[-1]
    return pool.as_strided(
        (kv_heads, tokens, d), (of_head, d, 1), pool.storage_offset() + start
    )  # fmt: skip


def _products(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Products of q `[m, heads, d]` and k `[kv_heads, n, d]`, `[heads, m, n]` fp32."""
    grouped = q.float().transpose(0, 1).reshape(len(k), -1, len(q), q.shape[2])
    products: Tensor = grouped @ k.float().transpose(1, 2)[:, None]
    return products.flatten(0, 1) * scale


def attend_block(
    q: Tensor, k: Tensor, v: Tensor, runs: Tensor, sums: Tensor, highest: Tensor, totals: Tensor,
    scale: float, *_: Any, GRID: tuple[int, int], GROUP: int, BLOCK: int, **__: Any,
) -> None:  # fmt: skip
    queries = q.float().view(GRID[0], GROUP, -1)
    for run, (start, length) in enumerate(runs.t().tolist()):
        for block in range(-(-length // BLOCK)):
            rows = slice(start + block * BLOCK, start + min(length, (block + 1) * BLOCK))
            scores = queries[run] @ k[rows].float().t() * scale
            highest[run, block] = scores.max(-1).values
            weights = (scores - highest[run, block, :, None]).exp()
            totals[run, block], sums[run, block] = weights.sum(-1), weights @ v[rows].float()


def join_blocks(
    sums: Tensor, highest: Tensor, totals: Tensor, runs: Tensor, out: Tensor, number: int,
    blocks: int, *_: Any, GROUP: int, BLOCK: int, **__: Any,
) -> None:  # fmt: skip
    joined = out.view(number, GROUP, -1)
    for run, length in enumerate(runs[1].tolist()):
        there = slice(0, -(-length // BLOCK))
        share = (highest[run, there] - highest[run, there].max(0).values).exp()
        total = (share * totals[run, there]).sum(0)
        joined[run] = (share[..., None] * sums[run, there]).sum(0) / total[:, None]
