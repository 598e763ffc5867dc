"""Attention of one new token per sequence on a GPU, in Triton, over KV of unequal lengths.

The KV pool holds one run of consecutive rows for each sequence and KV head.

    run       |  block 0  |  block 1  |  block 2 |     one program each, all its query heads at once
    partial      sums, highest score, total            fp32
    result       the blocks of a run put together      one program per query head

A block has a fixed number of keys. One long sequence alone therefore fills a GPU, and a sequence's
result depends only on its own run. Before its first use on a device the kernel is compared with
torch's attention (`triton_support`). `cpu.ragged_attention` is the same on a CPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

# Keys of a block, and how many of them are read at once. 8,192 keys of 8 KV heads are 128 programs,
# about one for each multiprocessor of a large GPU; a block's partial result is one or two percent
# of what it read. Of 128 to 1,024 the best for one and for eight such sequences on an H100; on an
# H200 256 is as fast for one, and 1,024 3 % faster for 64.
BLOCK, KEYS = 512, 64
# Blocks whose partial results are joined at once.
PARTS = 32
# Query heads of a KV head, padded with zeros: tensor cores multiply 16 rows at a time.
HEADS = 16
# Tiles of keys in flight, as many as every GPU since Ampere has room for; at head_dim 256 there is
# no room for a third, which takes a quarter off the time of one sequence.
STAGES = {32: 3, 64: 3, 128: 3, 256: 2}
OPTIONS = {"enable_fp_fusion": True}
# Allowed difference in the check before the first use: one bfloat16 rounding of values near 1.
TOLERANCE = 2**-6


def supports(q: Tensor, k: Tensor, group: int) -> bool:
    """Return whether the kernel takes queries `[sequences, heads, head_dim]`, `group` per KV
    head."""
    on_gpu = _attend is not None and q.device.type == "cuda"
    fits = (
        q.dtype == k.dtype
        and q.dtype in triton_support.HALF_PRECISION
        and q.shape[2] in (32, 64, 128, 256)
    )
    fits = fits and group <= HEADS and k.is_contiguous()
    return on_gpu and fits and is_verified(q.device, group, q.shape[2])


@triton_support.verified("attention of one token, {} heads of {}", TOLERANCE)
def is_verified(device: torch.device, group: int, d: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    q = torch.randn(2, 2 * group, d, generator=random, device=device).bfloat16()
    k, v = torch.randn(2, 3 * BLOCK, d, generator=random, device=device).bfloat16()
    starts, lengths = [600, 30, 0, 2 * BLOCK], [70, BLOCK + 1, 1, BLOCK]
    scale, theirs = d**-0.5, []
    for asked, start, length in zip(q.view(4, 1, group, d), starts, lengths, strict=True):
        keys, values = (x[None, start : start + length].float() for x in (k, v))
        theirs.append(F.scaled_dot_product_attention(asked.float(), keys, values, scale=scale))
    runs = torch.tensor([starts, lengths], device=device)
    return attend(q, k, v, runs, max(lengths), scale), torch.cat(theirs).view(q.shape)


def attend(q: Tensor, k: Tensor, v: Tensor, runs: Tensor, longest: int, scale: float) -> Tensor:
    """Return softmax attention of q `[sequences, heads, head_dim]` over the pool's rows k and v
    `[rows, head_dim]`. `runs` are first row and number of rows of every sequence's every KV head,
    `[2, sequences * kv_heads]` int64; none is empty or above `longest`.

    Softmax and sums are in fp32. Nothing waits for the device, so a CUDA graph can replay the call
    with other runs of other lengths up to `longest`.
    """
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    heads, d = q.shape[0] * q.shape[1], q.shape[2]
    runs = runs.contiguous()
    number, blocks = runs.shape[1], -(-longest // BLOCK)
    group = heads // number
    sums = torch.empty(number, blocks, group, d, dtype=torch.float32, device=q.device)
    highest, totals = torch.empty(2, number, blocks, group, dtype=torch.float32, device=q.device)
    _attend[(number, blocks)](
        q, k, v, runs, sums, highest, totals, scale,
        GROUP=group, HEADS=HEADS, D=d, BLOCK=BLOCK, KEYS=KEYS, num_stages=STAGES[d], **OPTIONS,
    )  # fmt: skip
    _join[(heads,)](
        sums, highest, totals, runs, out, number, blocks,
        GROUP=group, D=d, BLOCK=BLOCK, PARTS=PARTS, **OPTIONS,
    )  # fmt: skip
    return out


def _attend_block(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, extents: tl.tensor, sums: tl.tensor,
    highest: tl.tensor, totals: tl.tensor, scale: tl.tensor, GROUP: tl.constexpr,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
) -> None:  # fmt: skip
    run, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(extents + run)
    length = tl.load(extents + tl.num_programs(0) + run)
    first = block * BLOCK
    if first < length:
        head, width = tl.arange(0, HEADS), tl.arange(0, D)
        mine = head < GROUP
        asked = tl.load(
            q + (run * GROUP + head)[:, None] * D + width[None, :], mask=mine[:, None], other=0.0
        )
        most = tl.full((HEADS,), float("-inf"), tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        summed = tl.zeros((HEADS, D), tl.float32)
        for at in range(0, BLOCK, KEYS):
            key = first + at + tl.arange(0, KEYS)
            # Masked by index, never by value: a NaN in the cache must show in the result.
            there = key < length
            row = (start + key) * D
            keys = tl.load(k + row[None, :] + width[:, None], mask=there[None, :], other=0.0)
            scores = tl.where(there[None, :], tl.dot(asked, keys) * scale, float("-inf"))
            more = tl.maximum(most, tl.max(scores, 1))
            weights, fade = tl.exp(scores - more[:, None]), tl.exp(most - more)
            values = tl.load(v + row[:, None] + width[None, :], mask=there[:, None], other=0.0)
            summed = summed * fade[:, None] + tl.dot(weights.to(values.dtype), values)
            total = total * fade + tl.sum(weights, 1)
            most = more
        part = (run * tl.num_programs(1) + block) * GROUP + head
        tl.store(sums + part[:, None] * D + width[None, :], summed, mask=mine[:, None])
        tl.store(highest + part, most, mask=mine)
        tl.store(totals + part, total, mask=mine)


def _join_blocks(
    sums: tl.tensor, highest: tl.tensor, totals: tl.tensor, extents: tl.tensor, out: tl.tensor,
    runs: tl.tensor, blocks: tl.tensor, GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:  # fmt: skip
    head, width = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    run = head // GROUP
    length = tl.load(extents + runs + run)
    most = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    summed = tl.zeros((D,), tl.float32)
    first = 0
    while first * BLOCK < length:
        block = first + tl.arange(0, PARTS)
        there = block * BLOCK < length
        part = (run * blocks + block) * GROUP + head % GROUP
        reached = tl.load(highest + part, mask=there, other=float("-inf"))
        more = tl.maximum(most, tl.max(reached, 0))
        share, fade = tl.exp(reached - more), tl.exp(most - more)
        total = total * fade + tl.sum(share * tl.load(totals + part, mask=there, other=0.0), 0)
        found = tl.load(sums + part[:, None] * D + width[None, :], mask=there[:, None], other=0.0)
        summed = summed * fade + tl.sum(share[:, None] * found, 0)
        most = more
        first += PARTS
    tl.store(out + head * D + width, (summed / total).to(out.dtype.element_ty))


_attend, _join = (
    triton_support.jit(_attend_block),
    triton_support.jit(_join_blocks, "runs", "blocks"),
)
