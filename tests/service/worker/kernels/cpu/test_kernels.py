"""Widened products and large-page memory against fp64 and plain torch; joined modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.kernels.cpu.weight import MIN_HUGE_BYTES, zeros_in_huge_pages
from kvstitch.service.worker.model.projection import DenseProjection, fuse
from kvstitch.service.worker.steps import run
from tests.service.worker.tiny import assert_close

pytestmark = pytest.mark.exhaustive

# One bf16 rounding of a result of size about 1 to 4.
BF16 = 2**-7


def drawn(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16()


@pytest.mark.parametrize("rows", [1, 11, 12, 49, 130])
@pytest.mark.parametrize("outs", [8, cpu_linear.TILE, cpu_linear.TILE + 40])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_linear_is_the_exact_product(
    rows: int, outs: int, bias: bool, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both sides of the threshold, whole and broken tiles, and by torch's bfloat16; of a width
    that no kernel takes."""
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: slow)
    x, weight = drawn(rows, 72, seed=1) * 8, drawn(outs, 72, seed=2)
    added = drawn(outs, seed=3) if bias else None
    ours = cpu_linear.linear(x, weight, added)
    expected = x.double() @ weight.double().t() + (0 if added is None else added.double())
    assert ours.dtype == torch.bfloat16 and ours.is_contiguous()
    assert_close("wide.linear", ours.double(), expected, 2 * BF16)


@pytest.mark.parametrize("inner", [16, cpu_linear.TILE, 2 * cpu_linear.TILE + 24])
def test_gated_mlp_is_the_exact_one(inner: int) -> None:
    """But for rounding in between, as torch does."""
    x = drawn(60, 72, seed=1) * 8
    gate, up = drawn(inner, 72, seed=2), drawn(inner, 72, seed=3)
    down = drawn(72, inner, seed=4)
    ours = run(cpu_linear.gated_mlp(x, gate, up, down, F.silu))
    middle = F.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    assert ours.dtype == torch.bfloat16
    assert_close("wide.gated_mlp", ours.double(), middle @ down.double().t(), 3 * BF16)


@pytest.mark.parametrize("tiles", [False, True])
def test_a_cpu_that_is_fast_at_one_16_bit_type_need_not_be_at_the_other(
    tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: False)
    x = drawn(60, 32, seed=1)
    assert not cpu_linear.has_slow_16_bit_products(x) and cpu_linear.has_slow_16_bit_products(
        x.half()
    ) == (not tiles)


def test_full_precision_is_left_alone() -> None:
    x, weight = drawn(100, 16, seed=1).float(), drawn(8, 16, seed=2).float()
    assert not cpu_linear.is_faster_in_fp32(x)
    assert cpu_linear.linear(x, weight).equal(F.linear(x, weight))


@pytest.mark.parametrize("rows", [3, (MIN_HUGE_BYTES >> 8) + 3])
def test_memory_is_zero_and_writable(rows: int) -> None:
    """Below and above the size from which pages are asked for."""
    made = zeros_in_huge_pages((rows, 128), dtype=torch.bfloat16, device=torch.device("cpu"))
    assert made.shape == (rows, 128) and made.dtype == torch.bfloat16
    assert not made.any()
    made[-1] = 1
    assert made.sum() == 128


@pytest.mark.parametrize("bias", [False, True])
def test_joined_modules_go_on_working(bias: bool) -> None:
    """One product gives what they give apart; their parameters are views of it, not copies."""
    modules = [nn.Linear(12, outs, bias=bias) for outs in (8, 4, 4)]
    x = torch.randn(5, 12)
    before = torch.cat([m(x) for m in modules], -1)
    fused = fuse(*modules)
    assert isinstance(fused, DenseProjection)
    assert_close("joined", F.linear(x, fused.weight, fused.bias), before, 1e-6)
    assert torch.cat([m(x) for m in modules], -1).equal(before)
    fused.weight.zero_()
    assert not any(m.weight.any() for m in modules)
