"""Each kernel beside what libraries do for the same job, one call each.

oneDNN multiplies as torch calls it, which rearranges the weight on every call, and with a weight
that was rearranged beforehand, which takes its memory a second time. `torch.compile` and
flex_attention need a C++ compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.paired import Paired, Work, run_paired
from service.worker.api import DecoderModel, attend_rows
from service.worker.kernels.cpu import (
    cpu_linear,
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
)
from service.worker.model.rope import RotaryTable
from service.worker.steps import run

OURS = "ours"
CALLS = 10
"""Of one way in a sample, each with another weight, so that none is in the cache."""
Ways = dict[str, Callable[[int], object]]


def beside_libraries(
    decoder: DecoderModel, tokens: int, repetitions: int, *, compiled: bool
) -> dict[str, Paired]:
    """Seconds of `CALLS` calls, by job and way.

    Args:
        decoder: gives the shapes.
        tokens: of a prompt.
        repetitions: of every measurement.
        compiled: whether to try torch.compile and flex_attention.
    """
    jobs: dict[str, Ways] = {}
    few, some = (1, 8), (32, tokens * 15 // 100, tokens)
    for rows in few:
        jobs[f"gate and up, {rows} rows"] = _products(decoder, rows, compiled=compiled)
    for rows in some:
        jobs[f"gate and up, {rows} rows"] = _products(decoder, rows, compiled=compiled)
        jobs[f"MLP, {rows} rows"] = _mlps(decoder, rows, compiled=compiled)
    for rows in some:
        jobs[f"attention, {rows} of {tokens} rows"] = _attention(
            decoder, rows, tokens, compiled=compiled
        )
    jobs[f"rotation, {tokens} rows"] = _rotations(decoder, tokens)
    return {job: _timed(ways, repetitions) for job, ways in jobs.items()}


def _timed(ways: Ways, repetitions: int) -> Paired:
    def repeated(way: Callable[[int], object]) -> None:
        for call in range(CALLS):
            way(call)

    works: dict[str, Work] = {
        name: partial(repeated, way) for name, way in ways.items() if _runs(name, way)
    }
    return run_paired(works, repetitions)


def _runs(name: str, way: Callable[[int], object]) -> bool:
    """Whether a way works here: what a compiler makes of it may not."""
    try:
        way(0)
    except Exception as error:
        if name == OURS:
            raise
        print(f"{name} left out: {str(error)[:200]}", file=sys.stderr)
        return False
    return True


def _drawn(*shape: int) -> Tensor:
    out: Tensor = (torch.randn(shape) / shape[-1] ** 0.5).bfloat16()
    return out


def _weights(outs: int, columns: int) -> list[Tensor]:
    return [_drawn(outs, columns) for _ in range(CALLS)]


def _prepacked(weights: Sequence[Tensor], rows: int) -> list[Tensor]:
    """As oneDNN wants them; as they are where it has no bfloat16 for this CPU, which `_runs` finds
    out at the first product."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return list(weights)
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return [reorder(weight, rows) for weight in weights]


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


def _products(decoder: DecoderModel, rows: int, *, compiled: bool) -> Ways:
    x = _drawn(rows, decoder.hidden)
    weights = _weights(2 * decoder.intermediate, decoder.hidden)
    packed = _prepacked(weights, rows)
    ways: Ways = {
        OURS: lambda i: cpu_linear.linear(x, weights[i]),
        "oneDNN": lambda i: F.linear(x, weights[i]),
        "oneDNN, prepacked": lambda i: _pointwise(x, packed[i]),
        "fp32 of a copy": lambda i: (x.float() @ weights[i].float().t()).bfloat16(),
    }
    if linear_few_rows.supports(x, weights[0]):
        ways["linear_few_rows"] = lambda i: linear_few_rows.linear(x, weights[i])
    for module in (linear_many_rows_bf16, linear_many_rows_fp32):
        if module.supports(x, weights[0]):
            ways[module.__name__.rpartition(".")[2]] = partial(_by, module.linear, x, weights)
    if compiled:
        ways["torch.compile"] = partial(_by, torch.compile(F.linear), x, weights)
    return ways


def _by(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, ws: Sequence[Tensor], i: int
) -> Tensor:
    return product(x, ws[i])


def _mlps(decoder: DecoderModel, rows: int, *, compiled: bool) -> Ways:
    x = _drawn(rows, decoder.hidden)
    gates, ups = (_weights(decoder.intermediate, decoder.hidden) for _ in range(2))
    downs = _weights(decoder.hidden, decoder.intermediate)
    packed = [_prepacked(weights, rows) for weights in (gates, ups, downs)]

    def by_torch(gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, gate)).mul_(F.linear(x, up)), down)

    def prepacked(i: int) -> Tensor:
        gate, up, down = (each[i] for each in packed)
        return _pointwise(F.silu(_pointwise(x, gate)).mul_(_pointwise(x, up)), down)

    def ours(i: int) -> Tensor:
        parts = (x, gates[i], ups[i], downs[i], F.silu)
        if cpu_linear.supports_gated_mlp(*parts):
            return run(cpu_linear.gated_mlp(*parts))
        return by_torch(*parts[1:4])

    ways: Ways = {
        OURS: ours,
        "oneDNN": lambda i: by_torch(gates[i], ups[i], downs[i]),
        "oneDNN, prepacked": prepacked,
    }
    if compiled:
        fused = torch.compile(by_torch)
        ways["torch.compile"] = lambda i: fused(gates[i], ups[i], downs[i])
    return ways


def _attention(decoder: DecoderModel, rows: int, tokens: int, *, compiled: bool) -> Ways:
    """Rows at random places of a prompt; all of them for full prefill."""
    places = torch.randperm(tokens)[:rows].sort().values
    q = _drawn(rows, decoder.heads, decoder.head_dim)
    k, v = (_drawn(decoder.kv_heads, tokens, decoder.head_dim) for _ in range(2))
    mask = torch.arange(tokens) <= places[:, None]
    first, keys, values = q.transpose(0, 1)[None], k[None], v[None]
    scale = decoder.scale
    sdpa = partial(F.scaled_dot_product_attention, scale=scale, enable_gqa=True)
    ways: Ways = {
        OURS: lambda _: attend_rows(q, k, v, places, scale),
        "SDPA": lambda _: sdpa(first, keys, values, attn_mask=mask),
    }
    if rows == tokens:
        ways["SDPA, causal"] = lambda _: sdpa(first, keys, values, is_causal=True)
    if compiled:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def seen(_batch: Tensor, _head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            return key <= places[row]

        blocks = create_block_mask(seen, None, None, rows, tokens, device="cpu")
        flex = torch.compile(flex_attention)
        ways["flex_attention"] = lambda _: flex(
            first, keys, values, block_mask=blocks, scale=scale, enable_gqa=True
        )
    return ways


def _rotations(decoder: DecoderModel, rows: int) -> Ways:
    x, positions = _drawn(rows, decoder.kv_heads, decoder.head_dim), torch.arange(rows)
    rope: RotaryTable = decoder.ropes[0]
    return {
        OURS: lambda _: rope.rotate(x, positions),
        "torch": lambda _: rope.at(positions)(x),
    }
