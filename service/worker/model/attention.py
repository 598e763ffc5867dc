"""Attention of rows at arbitrary sequence positions over a head-major KV cache.

Masks go by position in the sequence: the row at index t sees key j if and only if j <= t, whatever
its row number. (The bottom-right causal mask of public code would let early rows see later
documents.) Rows are always in ascending order. Caches are `[kv_heads, tokens, head_dim]`.

What a layer's `AttentionRule` adds is computed in torch; layers without one, and windows that no
prompt reaches, use the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import cpu_linear, measured, prefill_attention
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule

# Rows per tile. A tile reads keys only up to its last row, so about half of a causal triangle is
# never computed. Smaller tiles skip more, larger ones need fewer calls.
ROW_TILE = 64
# Rows per tile of attention by a rule on a GPU, so that there are few calls; and, where scores are
# made explicitly, the most fp32 numbers `heads · rows · keys` of a tile: 64 MiB, and 512 on a GPU.
RULE_TILE_ELSEWHERE = 512
RULE_SCORES, RULE_SCORES_ELSEWHERE = 1 << 24, 1 << 27

# Rows that are many for the choice between the kernel and torch, and the keys it is measured with.
MANY_ROWS, MEASURED_KEYS = 512, 1024

ScoreFn = Callable[[Tensor, Tensor], Tensor | None]
"""Softmax weights `[heads, m, n]` and positions of their rows `[m]` → scores of the keys `[n]`.

None: these rows add nothing."""


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scale: float,
    *,
    last: int | None = None,
    key_rows: Tensor | None = None,
    rule: AttentionRule = PLAIN,
) -> Tensor:
    """Attend index-causally: every row sees the keys up to its own position.

    Args:
        q: `[m, heads, head_dim]`, after RoPE.
        k: `[kv_heads, n, head_dim]`, after RoPE, filled in as far as a row may see; v is like it.
        rows: ascending positions of the queries, `[m]`; `last` is the last of them, where known.
        key_rows: ascending positions of the keys, `[n]`; 0..n-1 by default.

    Returns:
        `[m, heads * head_dim]` in q's dtype.
    """
    if rule is not PLAIN and _differs(rule, k, rows, key_rows):
        return _attend_by_rule(q, k, v, rows, scale, key_rows=key_rows, rule=rule)
    m = len(q)
    if m == 1:
        if key_rows is None:
            seen = (int(rows[0]) if last is None else last) + 1
        else:
            seen = int((key_rows <= rows[0]).sum())
        return attend_last(q[0], k[:, :seen], v[:, :seen], scale).unsqueeze(0)
    if prefill_attention.supports(q, k, v) and kernel_is_fast(m >= MANY_ROWS):
        counts = rows + 1 if key_rows is None else torch.searchsorted(key_rows, rows, right=True)
        return prefill_attention.attend(q, k, v, counts, scale)
    return _attend_in_torch(q, k, v, rows, scale, key_rows=key_rows)


def _attend_in_torch(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float, *, key_rows: Tensor | None = None
) -> Tensor:
    m, heads, d = q.shape
    kv_heads, n = k.shape[0], k.shape[1]
    dtype = q.dtype
    if cpu_linear.is_faster_in_fp32(q):
        q, k, v = q.float(), k.float(), v.float()
    grouped = q.view(m, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3)
    # `expand` copies nothing: all query heads of a group read the same keys.
    k4 = k.unsqueeze(1).expand(-1, heads // kv_heads, -1, -1)
    v4 = v.unsqueeze(1).expand(-1, heads // kv_heads, -1, -1)
    if m == n and key_rows is None:
        out = F.scaled_dot_product_attention(grouped, k4, v4, is_causal=True, scale=scale)
        return out.permute(2, 0, 1, 3).reshape(m, heads * d).to(dtype)
    if key_rows is None:
        attended = kernels_of(q.device).attend(q, k, v, rows, scale)
        if attended is not None:
            return attended
    out = torch.empty(m, kv_heads, heads // kv_heads, d, dtype=dtype, device=q.device)
    index = torch.arange(n, device=q.device) if key_rows is None else key_rows
    for a, b, seen in _tiles(rows, index):
        mask = index[:seen] <= rows[a:b, None]
        tile = grouped[:, :, a:b], k4[:, :, :seen], v4[:, :, :seen]
        part = F.scaled_dot_product_attention(*tile, attn_mask=mask, scale=scale)
        out[a:b] = part.permute(2, 0, 1, 3)
    return out.reshape(m, heads * d)


@cache
def kernel_is_fast(many: bool) -> bool:
    """Return whether the kernel takes no longer than torch for many or some rows. It is taken to
    be but where torch has the processor's tiles for bfloat16 (AMX): there it is measured."""
    if not torch.cpu._is_amx_tile_supported():
        return True
    rows = torch.arange(0, MEASURED_KEYS, 1 if many else 7)
    q, k = torch.ones(len(rows), 8, 64).bfloat16(), torch.ones(2, MEASURED_KEYS, 64).bfloat16()
    return measured.is_fast(
        f"attention of {len(rows)} rows to {MEASURED_KEYS} keys",
        partial(prefill_attention.attend, q, k, k, rows + 1, 0.125),
        partial(_attend_in_torch, q, k, k, rows, 0.125),
    )


def attend_with_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scoring: Tensor | ScoreFn,
    scale: float,
    *,
    key_rows: Tensor | None = None,
    rule: AttentionRule = PLAIN,
) -> tuple[Tensor, Tensor]:
    """`attend_rows` for few rows, and scores of the keys `[n]` fp32: the softmax weights times
    their row's weight `[m]`, summed over heads and rows; or what a function makes of the
    weights, added up over tiles of rows."""
    differs = rule is not PLAIN and _differs(rule, k, rows, key_rows)
    if isinstance(scoring, Tensor) and not differs and prefill_attention.supports(q, k, v):
        counts = rows + 1 if key_rows is None else torch.searchsorted(key_rows, rows, right=True)
        return prefill_attention.attend_with_scores(
            q, k, v, counts, row_weights=scoring, scale=scale
        )
    if isinstance(scoring, Tensor) and not differs and key_rows is None:
        found = kernels_of(q.device).attend_with_scores(q, k, v, rows, scoring, scale)
        if found is not None:
            return found
    scores: Tensor | None = None
    attended = []
    for a in range(0, len(rows), ROW_TILE):
        tile = slice(a, a + ROW_TILE)
        weights = attention_probabilities(
            q[tile], k, rows[tile], scale, key_rows=key_rows, rule=rule
        )
        if isinstance(scoring, Tensor):
            part: Tensor | None = torch.einsum("hmn,m->n", weights, scoring[tile])
        else:
            part = scoring(weights, rows[tile])
        if part is not None:
            scores = part if scores is None else scores + part
        attended.append(weighted_values(weights, v))
    if scores is None:
        scores = torch.zeros(k.shape[1], device=k.device)
    return attended[0] if len(attended) == 1 else torch.cat(attended), scores


def _tiles(rows: Tensor, index: Tensor) -> list[tuple[int, int, int]]:
    """Return tiles `(a, b, seen)`: rows a..b see none of the keys `[seen:]`."""
    starts = range(0, len(rows), ROW_TILE)
    ends = [min(a + ROW_TILE, len(rows)) for a in starts]
    last = rows[torch.tensor(ends, device=rows.device) - 1]
    # One transfer from the device for all tiles.
    seen = torch.searchsorted(index, last, right=True).tolist()
    return list(zip(starts, ends, seen, strict=True))


def _differs(rule: AttentionRule, k: Tensor, rows: Tensor, key_rows: Tensor | None) -> bool:
    """Return whether the rule makes this attention another than the plain one."""
    if not rule.plain_weights:
        return True
    span = k.shape[1] if key_rows is None else int(rows[-1]) + 1 - int(key_rows[0])
    return rule.narrows(span)


def _attend_by_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scale: float,
    *,
    key_rows: Tensor | None,
    rule: AttentionRule,
) -> Tensor:
    """`attend_rows` in torch, tile by tile over the keys that a tile's rows may see."""
    m, heads, d = q.shape
    index = torch.arange(k.shape[1], device=q.device) if key_rows is None else key_rows
    on_cpu = q.device.type == "cpu"
    size = ROW_TILE if on_cpu else RULE_TILE_ELSEWHERE
    if not rule.plain_weights:
        most = RULE_SCORES if on_cpu else RULE_SCORES_ELSEWHERE
        keys = min(k.shape[1], (rule.window or k.shape[1]) + size)
        size = max(1, min(size, most // (heads * keys)))
    starts = range(0, m, size)
    ends = [*starts[1:], m]
    last = rows[[end - 1 for end in ends]] + 1
    first = torch.zeros_like(last) if rule.window is None else rows[[*starts]] + 1 - rule.window
    # One transfer from the device for all tiles.
    spans = torch.searchsorted(index, torch.cat([first, last])).tolist()
    out = torch.empty(m, heads * d, dtype=q.dtype, device=q.device)
    for a, b, low, high in zip(starts, ends, spans[: len(ends)], spans[len(ends) :], strict=True):
        seen, tile = slice(low, high), rows[a:b]
        if low == high:  # rows whose windows hold none of the keys given
            out[a:b] = 0
            continue
        if rule.plain_weights:
            in_fp32 = cpu_linear.is_faster_in_fp32(q)
            parts = (q[a:b].transpose(0, 1), k[:, seen], v[:, seen])
            some_q, some_k, some_v = (part.float() if in_fp32 else part for part in parts)
            part = F.scaled_dot_product_attention(
                some_q[None], some_k[None], some_v[None],
                attn_mask=~rule.hidden(index[seen], tile), scale=scale, enable_gqa=True,
            )  # fmt: skip
            # Some devices' kernels make NaN of a row that sees no key.
            out[a:b] = part[0].nan_to_num_(0.0).transpose(0, 1).reshape(b - a, heads * d)
        else:
            weights = attention_probabilities(
                q[a:b], k[:, seen], tile, scale, key_rows=index[seen], rule=rule
            )
            out[a:b] = weighted_values(weights, v[:, seen])
    return out


def attend_last(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, rule: AttentionRule = PLAIN
) -> Tensor:
    """Attend by one query to all keys: q `[heads, d]`, k, v `[kv_heads, n, d]` → `[heads * d]`;
    of `rule` the window is not looked at."""
    heads, d = q.shape
    if not rule.plain_weights:
        grouped = q.view(k.shape[0], -1, d).float()
        scores = rule.capped(torch.einsum("hgd,hnd->hgn", grouped, k.float()) * scale)
        weights = rule.softmax(scores.unsqueeze(2))
        return weighted_values(weights.flatten(0, 1), v)[0]
    kv_heads = k.shape[0]
    # The query heads of a group become query rows of their KV head, so no key is copied.
    grouped = q.view(1, kv_heads, heads // kv_heads, d)
    out = F.scaled_dot_product_attention(grouped, k.unsqueeze(0), v.unsqueeze(0), scale=scale)
    return out.reshape(heads * d)


def attention_probabilities(
    q: Tensor,
    k: Tensor,
    rows: Tensor,
    scale: float,
    *,
    key_rows: Tensor | None = None,
    rule: AttentionRule = PLAIN,
) -> Tensor:
    """Return softmax weights `[heads, m, n]` fp32 of few rows, 0 for keys that a row does not
    see; arguments as of `attend_rows`."""
    m, heads, d = q.shape
    kv_heads, n = k.shape[0], k.shape[1]
    grouped = q.view(m, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3).float()
    scores = torch.einsum("hgmd,hnd->hgmn", grouped, k.float()) * scale
    index = torch.arange(n, device=q.device) if key_rows is None else key_rows
    scores = rule.capped(scores).masked_fill_(rule.hidden(index, rows), float("-inf"))
    return rule.softmax(scores).view(heads, m, n)


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """Multiply weights `[heads, m, n]` and v `[kv_heads, n, d]` → `[m, heads * d]`, v's dtype."""
    heads, m, n = weights.shape
    kv_heads, _, d = v.shape
    grouped = weights.view(kv_heads, heads // kv_heads * m, n).to(v.dtype)
    return (grouped @ v).view(heads, m, d).transpose(0, 1).reshape(m, heads * d)
