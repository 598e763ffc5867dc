"""The Triton kernel of a gated MLP's inside, against torch."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from service.worker.api import decoder_for
from service.worker.kernels.gpu import silu_product_gpu
from service.worker.steps import run
from tests.service.worker.kernels.gpu.interpreter import needs_triton, run_interpreted

DTYPES = {"cpu": (torch.float16, torch.float32), "cuda": (torch.float16, torch.bfloat16)}


def against_torch(device: str) -> None:
    """Raises AssertionError where the kernel is more than a rounding off."""
    random = torch.Generator().manual_seed(0)
    for dtype in DTYPES[device]:
        for rows, width in ((1, 1), (3, 1024), (2, 1500)):
            x = (8 * torch.randn(rows, 2 * width, generator=random)).to(device, dtype)
            gate, up = x.chunk(2, -1)
            ours, theirs = silu_product_gpu.silu_product(x), F.silu(gate) * up
            off = (ours.float() - theirs.float()).abs()
            assert bool((off <= 2 * torch.finfo(dtype).eps * theirs.float().abs()).all())
            assert ours.shape == (rows, width) and bool(ours.any())


def in_a_decoder(device: str) -> None:
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
            patch.object(silu_product_gpu, "supports", lambda _, taken=taken: taken),
            patch.object(
                silu_product_gpu, "silu_product", wraps=silu_product_gpu.silu_product
            ) as used,
        ):
            found.append(run(decoder.mlp(0, x, False)))
            assert used.call_count == taken
    assert float((found[0] - found[1]).abs().max()) <= 2e-3 * float(found[1].abs().max())


CHECKS = [against_torch, in_a_decoder]


@needs_triton
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_the_interpreter(check: object) -> None:
    run_interpreted(__name__, getattr(check, "__name__", ""))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_on_the_gpu() -> None:
    assert silu_product_gpu.supports(torch.zeros(2, 64, dtype=torch.bfloat16, device="cuda"))
    against_torch("cuda")
    in_a_decoder("cuda")


def test_a_cpu_is_left_to_others() -> None:
    assert not silu_product_gpu.supports(torch.zeros(2, 64, dtype=torch.bfloat16))
