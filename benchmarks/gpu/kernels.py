"""Our GPU kernels relative to what torch offers for the same job, one call each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.outcome import Figure, Outcome, at_least
from benchmarks.speed.paired import Work, run_paired
from kvstitch.service.worker.api import attend_rows
from kvstitch_gpu import index_causal_attention, kv_placement_gpu, ragged_attention_gpu
from kvstitch_gpu.kv_placement_gpu import Placement, StagedSegment, Target

CALLS = 20
"""Of a kernel for every sample: one takes some ten microseconds."""
EARNS = at_least(1.0)
RATIO = 0.15


def kernels(
    device: torch.device, tokens: int, chunks: int, batch: int, repetitions: int, *,
    heads: int, kv_heads: int, d: int,
) -> Outcome:  # fmt: skip
    """Times of torch's ways over ours: above 1 ours is faster.

    Args:
        device: to run on; without a GPU "ours" is what a CPU would run.
        tokens: of the prompt.
        chunks: segments of the prompt.
        batch: sequences decoded together.
        repetitions: of every measurement.
        heads: query heads.
        kv_heads: KV heads.
        d: size of a head.
    """
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "d": d, "device": device}
    figures: list[Figure] = []
    seconds: dict[str, Any] = {}
    jobs: dict[str, dict[str, Callable[[], object]]] = {
        f"attention of {int(RATIO * tokens)} rows among {tokens}": _scattered(tokens, **shape),
        f"placing {chunks} segments of {tokens // chunks}": _placing(tokens, chunks, **shape),
    }
    for size in (1, batch):
        jobs[f"one token of {size} x {tokens}"] = _decoding(size, tokens, **shape)
    for job, ways in jobs.items():
        timed: dict[str, Work] = {
            name: partial(_repeated, run, device) for name, run in ways.items()
        }
        paired = run_paired(timed, repetitions)
        seconds[job] = paired.raw()
        figures += [
            paired.figure(f"{job}: {name} over ours", name, "ours", EARNS)
            for name in ways
            if name != "ours"
        ]
    return Outcome(figures, {"seconds": seconds, "calls": CALLS})


def _repeated(run: Callable[[], object], device: torch.device) -> None:
    for _ in range(CALLS):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()


def _scattered(tokens: int, *, heads: int, kv_heads: int, d: int, device: torch.device) -> Any:
    random = torch.Generator().manual_seed(0)
    rows = torch.randperm(tokens, generator=random)[: int(RATIO * tokens)].sort().values.to(device)
    q = torch.randn(len(rows), heads, d, device=device).bfloat16()
    k, v = torch.randn(2, kv_heads, tokens, d, device=device).bfloat16()
    scale = d**-0.5
    mask = torch.arange(tokens, device=device) <= rows[:, None]
    q4 = q.transpose(0, 1)[None]

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(
            q4, k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True
        )

    ways = {"ours": partial(attend_rows, q, k, v, rows, scale), "sdpa with a mask": sdpa}
    if device.type == "cuda":
        ways["flex_attention"] = _flex(q4, k[None], v[None], rows, scale)
        assert index_causal_attention.supports(q, d), "the kernel is not used here"
    return ways


def _flex(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float) -> Callable[[], object]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(_b: Tensor, _h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return key <= rows[row]

    block_mask = create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=str(q.device))
    compiled = torch.compile(flex_attention)
    return lambda: compiled(q, k, v, block_mask=block_mask, scale=scale, enable_gqa=True)


def _placing(
    tokens: int, chunks: int, *, heads: int, kv_heads: int, d: int, device: torch.device
) -> Any:
    each = tokens // chunks
    k, v = torch.randn(2, chunks, each, kv_heads, d, device=device).bfloat16()
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    angles = torch.outer(torch.arange(tokens, device=device).float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.arange(tokens, device=device)
    k_out, v_out = torch.empty(2, kv_heads, chunks * each, d, device=device).bfloat16()
    spans = [slice(i * each, (i + 1) * each) for i in range(chunks)]

    def torch_way() -> None:
        for i, span in enumerate(spans):
            left, right = k[i].float().chunk(2, -1)
            c, s = cos[positions[span], None], sin[positions[span], None]
            turned = torch.cat([left * c - right * s, right * c + left * s], -1)
            k_out[:, span] = turned.transpose(0, 1)
            v_out[:, span] = v[i].transpose(0, 1)

    staged = torch.cat([k.view(chunks, -1), v.view(chunks, -1)], 1).flatten().view(torch.uint8)
    size = each * kv_heads * d * 2
    segments = [
        StagedSegment(span.start, each, False, 2 * i * size, (2 * i + 1) * size)
        for i, span in enumerate(spans)
    ]
    placement = Placement(segments, 2, device)
    target = Target.of_layer(k_out, v_out)

    def ours() -> None:
        kv_placement_gpu.place(staged, placement, target, positions=positions, cos=cos, sin=sin)

    if device.type == "cuda":
        assert kv_placement_gpu.supports(k_out), "the kernel is not used here"
        return {"ours": ours, "torch": torch_way}
    return {"ours": torch_way, "torch": torch_way}


def _decoding(
    batch: int, tokens: int, *, heads: int, kv_heads: int, d: int, device: torch.device
) -> Any:
    group = heads // kv_heads
    k, v = torch.randn(2, batch, kv_heads, tokens, d, device=device, dtype=torch.bfloat16)
    q = torch.randn(batch, heads, d, device=device).bfloat16()
    first = torch.arange(batch * kv_heads, device=device) * tokens
    runs = torch.stack([first, torch.full_like(first, tokens)])
    rows_k, rows_v, scale = k.view(-1, d), v.view(-1, d), d**-0.5

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale, enable_gqa=True)

    def grouped() -> Tensor:
        asked = q.view(batch, kv_heads, group, d)
        return F.scaled_dot_product_attention(asked, k, v, scale=scale)

    def ours() -> Tensor:
        return ragged_attention_gpu.attend(q, rows_k, rows_v, runs, tokens, scale)

    if device.type == "cuda":
        assert ragged_attention_gpu.supports(q, rows_k, group), "the kernel is not used here"
        return {"ours": ours, "sdpa": sdpa, "sdpa, heads as rows": grouped}
    return {"ours": grouped, "sdpa": sdpa}
