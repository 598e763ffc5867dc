"""How much attention keys receive from a few rows, on a GPU, in Triton: a program takes a block of
keys of one KV head, and adds up the softmax weights that all rows give them, times their row's
weight.

Every sum is made in one order, so the scores, and what is chosen by them, are the same each time.
Compared with torch before the first use on a device (`triton_support`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstitch_gpu import index_causal_attention, triton_support
from kvstitch_gpu.triton_support import tl

ROWS, KEYS = 32, 64
# Allowed difference in the check before the first use, of scores up to 2.
TOLERANCE = 2**-7


def supports(q: Tensor, head_dim: int) -> bool:
    """Return whether the kernels take queries like these."""
    fits = _kernel is not None and index_causal_attention.supports(q, head_dim)
    return fits and is_verified(q.device, head_dim)


@triton_support.verified("scores of keys, heads of {}", TOLERANCE)
def is_verified(device: torch.device, d: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    q = torch.randn(40, 4, d, generator=random, device=device).bfloat16()
    k, v = torch.randn(2, 2, 150, d, generator=random, device=device).bfloat16()
    rows = torch.arange(110, 150, device=device)
    weights = torch.rand(40, generator=random, device=device) / 40
    _, ours = attend_with_scores(q, k, v, rows, weights, d**-0.5)
    grouped = q.view(40, 2, 2, d).permute(1, 2, 0, 3).float()
    scores = grouped @ k.float().transpose(1, 2)[:, None] * d**-0.5
    scores = scores.masked_fill(torch.arange(150, device=device) > rows[:, None], float("-inf"))
    return ours, (scores.softmax(-1) * weights[:, None]).sum((0, 1, 2))


def attend_with_scores(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, row_weights: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return `index_causal_attention.attend` of the same arguments, and the keys' scores `[n]`
    fp32, to which each row counts by its weight `[m]` fp32."""
    scores = torch.empty(k.shape[:2], dtype=torch.float32, device=q.device)
    attended = fill_scores(q, k, v, rows, row_weights, scale, scores)
    return attended, scores.sum(0)


def fill_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    row_weights: Tensor,
    scale: float,
    scores: Tensor,
    *,
    extent: Tensor | None = None,
) -> Tensor:
    """`attend_with_scores`, with the scores by KV head written to `scores` `[kv_heads, n]` fp32.
    With `extent` (`index_causal_attention.EXTENT`) keys behind the prompt get 0."""
    m, heads, d = q.shape
    kv_heads, n = scores.shape
    logsums = torch.empty(heads, m, dtype=torch.float32, device=q.device)
    attended = index_causal_attention.attend(
        q, k, v, rows, scale, logsums=logsums, extent=extent, most_keys=n
    )
    _kernel[(-(-n // KEYS), kv_heads)](
        q, k, rows, row_weights, logsums, scores, rows if extent is None else extent, m, n, scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        GROUP=heads // kv_heads, D=d, ROWS=ROWS, KEYS=KEYS, PLACED=extent is not None,
        **index_causal_attention.OPTIONS,
    )  # fmt: skip
    return attended


def _score_block(
    q: tl.tensor, k: tl.tensor, rows: tl.tensor, weights: tl.tensor, logsums: tl.tensor,
    scores: tl.tensor, extent: tl.tensor, m: tl.tensor, n: tl.tensor, scale: tl.tensor,
    q_row: tl.tensor, q_head: tl.tensor, k_head: tl.tensor, k_row: tl.tensor, GROUP: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PLACED: tl.constexpr,
) -> None:  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    key, width = tl.program_id(0) * KEYS + tl.arange(0, KEYS), tl.arange(0, D)
    there, stop = key < n, n
    skipped, given = kv_head * k_head, m
    if PLACED:
        skipped = tl.multiple_of(tl.load(extent) + kv_head * tl.load(extent + 1), 16)
        stop, given = tl.load(extent + 2), tl.load(extent + 3)
    keys = tl.load(
        k + skipped + key[None, :] * k_row + width[:, None],
        mask=(key < stop)[None, :], other=0.0,
    )  # fmt: skip
    total = tl.zeros((KEYS,), tl.float32)
    for number in range(0, GROUP):
        head = kv_head * GROUP + number
        first = 0
        while first < given:
            at = first + tl.arange(0, ROWS)
            inside = at < given
            here = at.to(tl.int64)
            queries = tl.load(
                q + here[:, None] * q_row + head * q_head + width[None, :],
                mask=inside[:, None], other=0.0,
            )  # fmt: skip
            index = tl.load(rows + at, mask=inside, other=-1)
            logsum = tl.load(logsums + head * m + at, mask=inside, other=0.0)
            weight = tl.load(weights + at, mask=inside, other=0.0)
            found = tl.exp(tl.dot(queries, keys) * scale - logsum[:, None])
            seen = key[None, :] <= index[:, None]
            total += tl.sum(tl.where(seen & inside[:, None], found * weight[:, None], 0.0), 0)
            first += ROWS
    tl.store(scores + kv_head * n + key, total, mask=there)


_kernel = triton_support.jit(_score_block, "n")
