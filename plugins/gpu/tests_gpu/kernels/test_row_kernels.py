"""The Triton kernels of a sum with its norm, and of a gated MLP's inside, against torch."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from kvstitch.service.worker.api import decoder_for
from kvstitch.service.worker.steps import run
from kvstitch_gpu import row_kernels
from tests_gpu.kernels.interpreter import needs_gpu

DTYPES = {"cpu": (torch.float16, torch.float32), "cuda": (torch.float16, torch.bfloat16)}


def norms(device: str) -> None:
    """Raises AssertionError where the sum differs, or the norm by more than a rounding."""
    random = torch.Generator().manual_seed(0)
    for dtype in DTYPES[device]:
        for rows, width in ((1, 1), (3, 64), (2, 1500)):
            x, added = (3 * torch.randn(2, rows, 2 * width, generator=random)).to(device, dtype)
            x, added = x[:, :width].contiguous(), added[:, width:]  # rows further apart than wide
            weight = torch.rand(width, generator=random).to(device, dtype)
            total, ours = row_kernels.add_and_normalise(x, added, weight, 1e-6)
            theirs = F.rms_norm((x + added).float(), (width,), weight.float(), 1e-6)
            assert total.equal(x + added) and total.is_contiguous()
            off = (ours.float() - theirs).abs()
            assert bool((off <= 2 * torch.finfo(dtype).eps * theirs.abs() + 1e-7).all())
            alone = row_kernels.normalise(x + added, weight, 1e-6)
            assert alone.equal(ours)


def norms_in_a_decoder(device: str) -> None:
    """Raises AssertionError where a layer's end differs with and without the kernel."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=50, dtype=torch.float16,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = decoder_for(LlamaForCausalLM(config).half().to(device).eval().requires_grad_(False))
    x, attended = torch.randn(2, 5, 32, dtype=torch.float16, device=device)
    found, taken = [], row_kernels.add_and_normalise
    for used in (True, False):
        with (
            patch.object(row_kernels, "can_normalise", lambda _, used=used: used),
            patch.object(row_kernels, "add_and_normalise", wraps=taken) as launched,
        ):
            found.append(decoder.finish(0, x, attended))
            assert launched.call_count == used
    assert float((found[0] - found[1]).abs().max()) <= 2e-3 * float(found[1].abs().max())


def products(device: str) -> None:
    """Raises AssertionError where the kernel is more than a rounding off."""
    random = torch.Generator().manual_seed(0)
    for dtype in DTYPES[device]:
        for rows, width in ((1, 1), (3, 1024), (2, 1500)):
            x = (8 * torch.randn(rows, 2 * width, generator=random)).to(device, dtype)
            gate, up = x.chunk(2, -1)
            ours, theirs = row_kernels.silu_product(x), F.silu(gate) * up
            off = (ours.float() - theirs.float()).abs()
            assert bool((off <= 2 * torch.finfo(dtype).eps * theirs.float().abs()).all())
            assert ours.shape == (rows, width) and bool(ours.any())


def products_in_a_decoder(device: str) -> None:
    """Raises AssertionError where an MLP differs with and without the kernel."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=50, dtype=torch.float16,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = decoder_for(LlamaForCausalLM(config).half().to(device).eval().requires_grad_(False))
    x = torch.randn(5, 32, dtype=torch.float16, device=device)
    found = []
    for taken in (True, False):
        with (
            patch.object(row_kernels, "can_multiply", lambda _, taken=taken: taken),
            patch.object(row_kernels, "silu_product", wraps=row_kernels.silu_product) as used,
        ):
            found.append(run(decoder.mlp(0, x, False)))
            assert used.call_count == taken
    assert float((found[0] - found[1]).abs().max()) <= 2e-3 * float(found[1].abs().max())


CHECKS = [norms, norms_in_a_decoder, products, products_in_a_decoder]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: Callable[[str], None]) -> None:
    x = torch.zeros(2, 64, dtype=torch.bfloat16, device="cuda")
    assert row_kernels.can_normalise(x) and row_kernels.can_multiply(x)
    check("cuda")
