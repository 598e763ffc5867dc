"""The Triton kernel of a sum and its norm, against torch."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from service.worker.api import decoder_for
from service.worker.kernels.gpu import residual_norm_gpu
from tests.service.worker.kernels.gpu.interpreter import needs_triton, run_interpreted

DTYPES = {"cpu": (torch.float16, torch.float32), "cuda": (torch.float16, torch.bfloat16)}


def against_torch(device: str) -> None:
    """Raises AssertionError where the sum differs, or the norm by more than a rounding."""
    random = torch.Generator().manual_seed(0)
    for dtype in DTYPES[device]:
        for rows, width in ((1, 1), (3, 64), (2, 1500)):
            x, added = (3 * torch.randn(2, rows, 2 * width, generator=random)).to(device, dtype)
            x, added = x[:, :width].contiguous(), added[:, width:]  # rows further apart than wide
            weight = torch.rand(width, generator=random).to(device, dtype)
            total, ours = residual_norm_gpu.add_and_normalise(x, added, weight, 1e-6)
            theirs = F.rms_norm((x + added).float(), (width,), weight.float(), 1e-6)
            assert total.equal(x + added) and total.is_contiguous()
            off = (ours.float() - theirs).abs()
            assert bool((off <= 2 * torch.finfo(dtype).eps * theirs.abs() + 1e-7).all())
            alone = residual_norm_gpu.normalise(x + added, weight, 1e-6)
            assert alone.equal(ours)


def in_a_decoder(device: str) -> None:
    """Raises AssertionError where a layer's end differs with and without the kernel."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=50, dtype=torch.float16,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = decoder_for(LlamaForCausalLM(config).half().to(device).eval().requires_grad_(False))
    x, attended = torch.randn(2, 5, 32, dtype=torch.float16, device=device)
    found, taken = [], residual_norm_gpu.add_and_normalise
    for used in (True, False):
        with (
            patch.object(residual_norm_gpu, "supports", lambda _, used=used: used),
            patch.object(residual_norm_gpu, "add_and_normalise", wraps=taken) as launched,
        ):
            found.append(decoder.finish(0, x, attended))
            assert launched.call_count == used
    assert float((found[0] - found[1]).abs().max()) <= 2e-3 * float(found[1].abs().max())


CHECKS = [against_torch, in_a_decoder]


@needs_triton
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_the_interpreter(check: object) -> None:
    run_interpreted(__name__, getattr(check, "__name__", ""))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_on_the_gpu() -> None:
    assert residual_norm_gpu.supports(torch.zeros(2, 64, dtype=torch.bfloat16, device="cuda"))
    against_torch("cuda")
    in_a_decoder("cuda")


def test_a_cpu_is_left_to_others() -> None:
    assert not residual_norm_gpu.supports(torch.zeros(2, 64, dtype=torch.bfloat16))
