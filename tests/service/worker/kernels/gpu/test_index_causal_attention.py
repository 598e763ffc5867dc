"""The Triton kernel for scattered rows against the CPU's attention: run by Triton's interpreter,
which needs no GPU, and on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from service.worker.kernels.gpu import index_causal_attention
from service.worker.model.attention import attend_rows
from tests.service.worker.kernels.gpu.interpreter import needs_triton, run_interpreted
from tests.service.worker.tiny import assert_close

BF16 = 2**-6
CASES = [
    # rows' indices, keys, heads, KV heads, head dim
    (list(range(0, 150, 7)), 150, 4, 2, 32),
    ([0], 5, 2, 1, 64),
    (list(range(130)), 130, 4, 1, 32),
    ([3, 64, 65, 127, 128, 199], 200, 14, 2, 64),
]


def compare(device: str) -> None:
    """Raises AssertionError where the kernel and the CPU's attention differ."""
    for rows, n, heads, kv_heads, d in CASES:
        random = torch.Generator().manual_seed(n)
        q = torch.randn(len(rows), heads, d, generator=random)
        # A pool's heads are further apart than the prompt is long.
        k, v = torch.randn(2, kv_heads, n + 9, d, generator=random)[:, :, :n]
        index = torch.tensor(rows)
        expected = attend_rows(q, k, v, index, d**-0.5)
        on = [t.bfloat16() if device == "cuda" else t for t in (q, k, v)]
        q, k, v = (t.to(device) for t in on)
        ours = index_causal_attention.attend(q, k, v, index.to(device), d**-0.5)
        assert_close("scattered rows", ours.float().cpu(), expected, BF16 * 2)


@needs_triton
def test_in_the_interpreter() -> None:
    run_interpreted(__name__, "compare")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_on_the_gpu() -> None:
    assert index_causal_attention.is_verified(torch.device("cuda"), 64)
    compare("cuda")


def test_a_cpu_is_left_to_torch() -> None:
    assert not index_causal_attention.supports(torch.zeros(2, 4, 64, dtype=torch.bfloat16), 64)
