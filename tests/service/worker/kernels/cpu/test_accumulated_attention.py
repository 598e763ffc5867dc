"""The kernel that adds up attention by key, against fp64 and against the way in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from service.worker.kernels.cpu import accumulated_attention
from service.worker.kernels.cpu.accumulated_attention import Kernel
from service.worker.methods.sparse.sketch import streamed_mass
from tests.service.worker.tiny import assert_close

SCALE = 0.3
# tokens, prefix rows, KV heads, query heads to each, head_dim: single tokens, whole and broken
# tiles of queries and keys, a head size that fills no register.
SHAPES = [
    (1, 0, 2, 1, 64),
    (1, 5, 1, 4, 32),
    (6, 0, 2, 7, 64),
    (7, 1, 2, 4, 128),
    (64, 0, 1, 8, 64),
    (333, 3, 3, 2, 80),
    (512, 17, 2, 7, 64),
]


@pytest.fixture(scope="module")
def kernel(compiled: Any, bf16_dot: bool) -> Kernel:
    return Kernel(compiled, bf16_dot=bf16_dot)


def drawn(shape: tuple[int, int, int, int, int], size: float = 1) -> tuple[Tensor, Tensor]:
    """q, and k as a prompt's layer of a longer cache."""
    tokens, first, kv_heads, group, d = shape
    random = torch.Generator().manual_seed(sum(shape))
    q = torch.randn(first + tokens, kv_heads * group, d, generator=random)[first:]
    k = torch.randn(kv_heads, first + tokens + 9, d, generator=random)
    return (q * size).bfloat16(), (k * size).bfloat16()[:, : first + tokens]


def exact(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The whole matrix in fp64."""
    tokens, heads, _ = q.shape
    n = k.shape[1]
    keys = k.double().repeat_interleave(heads // len(k), 0)
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * SCALE
    own = torch.arange(tokens)[:, None] + n - tokens
    scores.masked_fill_(torch.arange(n) > own, float("-inf"))
    weights = scores.softmax(-1).masked_fill(torch.arange(n) == own, 0)
    return weights.sum((0, 1))[n - tokens :], scores.logsumexp(-1)


@pytest.mark.parametrize("size", [1.0, 8.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_normalisers(
    kernel: Kernel, shape: tuple[int, int, int, int, int], size: float
) -> None:
    """Scores of hundreds too: none of them overflows."""
    q, k = drawn(shape, size)
    assert (
        accumulated_attention.kernel_for(q, k) is not None or accumulated_attention.kernel() is None
    )
    expected = exact(q, k)
    for way, name in ((kernel, "kernel"), (streamed_mass, "torch")):
        mass, norm = way(q, k, SCALE)
        assert_close(f"{name}: attention by key", mass.double(), expected[0], 2e-3)
        assert_close(f"{name}: log normalisers", norm.double(), expected[1], 2e-3)


def test_any_number_of_threads_gives_the_same(kernel: Kernel) -> None:
    q, k = drawn(SHAPES[-1])
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(kernel(q, k, SCALE))
    finally:
        torch.set_num_threads(before)
    for mass, norm in found[1:]:
        assert mass.equal(found[0][0])
        assert norm.equal(found[0][1])


def test_others_are_left_to_torch() -> None:
    q, k = drawn(SHAPES[-1])
    assert accumulated_attention.kernel_for(q.float(), k.float()) is None
    assert (
        accumulated_attention.kernel_for(q.transpose(0, 1).contiguous().transpose(0, 1), k) is None
    )
