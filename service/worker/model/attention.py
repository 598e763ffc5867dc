"""Attention of rows at arbitrary sequence indices over a head-major KV cache.

Masks go by sequence index: the row at index t sees key j iff j <= t, whatever its row number (the
bottom-right causal mask of public code lets early rows see later documents). Rows are ascending.
Knows no model, no cache layout beyond `[kv_heads, tokens, head_dim]`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import cpu_linear, prefill_attention
from service.worker.kernels.gpu import index_causal_attention

# Rows per tile. A tile reads keys only up to its last row, so half of a causal triangle is never
# computed; smaller tiles skip more, larger ones amortise the call.
ROW_TILE = 64
# Keys that a whole tile sees are worth a call of their own, without a mask, from this many on.
MIN_OPEN_KEYS = 256

ScoreFn = Callable[[Tensor, Tensor], Tensor | None]
"""What keys get `[n]`, of the weights `[heads, m, n]` of some rows `[m]`; None: nothing."""


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scale: float,
    *,
    key_rows: Tensor | None = None,
) -> Tensor:
    """Index-causal attention.

    q `[m, heads, d]` of the rows at ascending indices `rows` `[m]`; k, v `[kv_heads, n, d]` with
    every key a row may see in place, at ascending indices `key_rows` `[n]` (default 0..n-1).
    Returns `[m, heads * d]`.
    """
    m, heads, d = q.shape
    kv_heads, n = k.shape[0], k.shape[1]
    if m == 1:
        seen = int(rows[0]) + 1 if key_rows is None else int((key_rows <= rows[0]).sum())
        return attend_last(q[0], k[:, :seen], v[:, :seen], scale).unsqueeze(0)
    if (kernel := prefill_attention.kernel_for(q, k, v)) is not None:
        counts = rows + 1 if key_rows is None else torch.searchsorted(key_rows, rows, right=True)
        return kernel.attend(q, k, v, counts, scale)
    dtype = q.dtype
    if cpu_linear.is_faster_in_fp32(q):
        q, k, v = q.float(), k.float(), v.float()
    grouped = q.view(m, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3)
    # Expanded, not repeated: all query heads of a group read the same keys.
    k4 = k.unsqueeze(1).expand(-1, heads // kv_heads, -1, -1)
    v4 = v.unsqueeze(1).expand(-1, heads // kv_heads, -1, -1)
    if m == n and key_rows is None:
        out = F.scaled_dot_product_attention(grouped, k4, v4, is_causal=True, scale=scale)
        return out.permute(2, 0, 1, 3).reshape(m, heads * d).to(dtype)
    if key_rows is None and index_causal_attention.supports(q, d):
        return index_causal_attention.attend(q, k, v, rows, scale)
    out = torch.empty(m, kv_heads, heads // kv_heads, d, dtype=dtype, device=q.device)
    index = torch.arange(n, device=q.device) if key_rows is None else key_rows
    for a, b, open_to, seen in _tiles(rows, index):
        part = _attend_tile(
            grouped[:, :, a:b],
            k4[:, :, :seen],
            v4[:, :, :seen],
            index[open_to:seen] <= rows[a:b, None],
            scale,
        )
        out[a:b] = part.permute(2, 0, 1, 3)
    return out.reshape(m, heads * d)


def attend_with_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    share: Tensor | ScoreFn,
    scale: float,
    *,
    key_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`attend_rows` of few rows, and how much they look at every key: their softmax weights added
    up over heads and rows, a row's times its share `[m]` fp32, or what a function makes of them
    → `[m, heads * d]` and `[n]` fp32."""
    kernel = prefill_attention.kernel_for(q, k, v)
    if kernel is not None and isinstance(share, Tensor):
        counts = rows + 1 if key_rows is None else torch.searchsorted(key_rows, rows, right=True)
        return kernel.attend_with_scores(q, k, v, counts, share, scale)
    told, attended = torch.zeros(k.shape[1], device=k.device), []
    for a in range(0, len(rows), ROW_TILE):
        tile = slice(a, a + ROW_TILE)
        weights = attention_probabilities(q[tile], k, rows[tile], scale, key_rows=key_rows)
        if isinstance(share, Tensor):
            told += torch.einsum("hmn,m->n", weights, share[tile])
        elif (part := share(weights, rows[tile])) is not None:
            told += part
        attended.append(weighted_values(weights, v))
    return torch.cat(attended), told


def _tiles(rows: Tensor, index: Tensor) -> list[tuple[int, int, int, int]]:
    """Tiles of rows `[a, b)` with the keys: every row sees `[:open_to]`, none sees `[seen:]`."""
    m = len(rows)
    starts = range(0, m, ROW_TILE)
    ends = [min(a + ROW_TILE, m) for a in starts]
    edges = rows[torch.tensor([*starts, *(b - 1 for b in ends)], device=rows.device)]
    # One transfer for all tiles.
    seen = torch.searchsorted(index, edges, right=True).tolist()
    return list(zip(starts, ends, seen[: len(ends)], seen[len(ends) :], strict=True))


def _attend_tile(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q `[kv_heads, group, rows, d]`, k, v `[kv_heads, group, keys, d]`; `mask` `[rows, masked]`
    hides some of the last keys, all the keys before them are seen."""
    keys, masked = k.shape[2], mask.shape[1]
    first = keys - masked
    if first < MIN_OPEN_KEYS or not masked or q.device.type != "cpu":
        whole = F.pad(mask, (first, 0), value=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=whole, scale=scale)
    # The kernel behind sdpa on a CPU; only it tells the log of each softmax's sum, with which two
    # softmaxes over parts of the keys are one over all.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, weight = attend(q, k[:, :, :first], v[:, :, :first], scale=scale)
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    tail, tail_weight = attend(q, k[:, :, first:], v[:, :, first:], attn_mask=bias, scale=scale)
    # A row that sees none of the tail has no sum there; the kernel gives 0 instead of -inf.
    tail_weight = tail_weight.masked_fill(~mask.any(1), float("-inf"))
    share = torch.sigmoid(weight - tail_weight).unsqueeze(-1)
    both: Tensor = torch.lerp(tail.float(), out.float(), share).to(q.dtype)
    return both


def attend_last(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query that sees every key: q `[heads, d]`, k, v `[kv_heads, n, d]` → `[heads * d]`."""
    heads, d = q.shape
    kv_heads = k.shape[0]
    # The group's query heads become query rows of their KV head: no key is copied or expanded.
    grouped = q.view(1, kv_heads, heads // kv_heads, d)
    out = F.scaled_dot_product_attention(grouped, k.unsqueeze(0), v.unsqueeze(0), scale=scale)
    return out.reshape(heads * d)


def attention_probabilities(
    q: Tensor, k: Tensor, rows: Tensor, scale: float, *, key_rows: Tensor | None = None
) -> Tensor:
    """Softmax weights in fp32 of the rows at `rows` over all keys: `[heads, m, n]`.

    q `[m, heads, d]`, k `[kv_heads, n, d]` at indices `key_rows` (default 0..n-1). Meant for few
    rows (a question, a scoring window).
    """
    m, heads, d = q.shape
    kv_heads, n = k.shape[0], k.shape[1]
    grouped = q.view(m, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3).float()
    scores = torch.einsum("hgmd,hnd->hgmn", grouped, k.float()) * scale
    index = torch.arange(n, device=q.device) if key_rows is None else key_rows
    scores.masked_fill_(index > rows[:, None], float("-inf"))
    return scores.softmax(-1).view(heads, m, n)


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """weights `[heads, m, n]` fp32, v `[kv_heads, n, d]` → `[m, heads * d]` in v's dtype."""
    heads, m, n = weights.shape
    kv_heads, _, d = v.shape
    grouped = weights.view(kv_heads, heads // kv_heads * m, n).to(v.dtype)
    return (grouped @ v).view(heads, m, d).transpose(0, 1).reshape(m, heads * d)
