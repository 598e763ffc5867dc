"""The kernel for one new token per sequence against fp64, and that a run's result is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from service.worker.kernels.cpu import ragged_attention
from service.worker.kernels.cpu.ragged_attention import Kernel
from service.worker.kernels.cpu.shared_library import open_library


@pytest.fixture(scope="module")
def kernel(built_kernels: Path) -> Kernel:
    library = open_library(built_kernels / "_ragged_attention.so", "ragged_attention")
    if library is None:
        pytest.skip("this CPU has no AVX-512")
    return Kernel(library)


@dataclass
class Case:
    """Runs scattered over a pool, in no order and with gaps."""

    q: Tensor
    k: Tensor
    v: Tensor
    starts: list[int]
    lengths: list[int]
    scale: float = 0.3

    @classmethod
    def of(cls, lengths: list[int], *, kv_heads: int, group: int, d: int, size: float = 1) -> Case:
        random = torch.Generator().manual_seed(d + group)
        runs = len(lengths)
        places = torch.randperm(runs, generator=random).tolist()
        apart = max(lengths) + 3

        def drawn(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=random) * size).bfloat16()

        rows = runs * apart
        starts = [place * apart for place in places]
        q = drawn(runs // kv_heads, kv_heads * group, d)
        return cls(q, drawn(rows, d), drawn(rows, d), starts, lengths)

    def ours(self, kernel: Kernel) -> Tensor:
        return kernel.attend(self.q, self.k, self.v, self.runs, self.scale)

    @property
    def runs(self) -> Tensor:
        return torch.tensor([self.starts, self.lengths])

    def expected(self) -> Tensor:
        """In fp64, run by run."""
        runs = len(self.starts)
        asked = self.q.double().view(runs, -1, self.q.shape[2])
        out = torch.empty_like(asked)
        for i, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            k, v = (x[start : start + length].double() for x in (self.k, self.v))
            out[i] = (asked[i] @ k.t() * self.scale).softmax(-1) @ v
        return out.view(self.q.shape)


def assert_rounded(ours: Tensor, expected: Tensor) -> None:
    """One rounding to bfloat16 away from the exact value, and what sums in fp32 may be off."""
    assert ours.dtype == torch.bfloat16 and ours.shape == expected.shape
    allowed = expected.abs() * 2**-8 * 1.02 + 1e-5
    assert bool(((ours.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 9])
@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_it_is_the_exact_attention_rounded(kernel: Kernel, group: int, d: int) -> None:
    """Lengths around a block of keys, a register and a tile."""
    lengths = [1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 300]
    case = Case.of(lengths, kv_heads=2, group=group, d=d)
    assert_rounded(case.ours(kernel), case.expected())


@pytest.mark.parametrize("size", [1e-3, 8.0, 40.0])
def test_flat_and_peaked_softmaxes(kernel: Kernel, size: float) -> None:
    """Scores so far apart that all weight lies on one key, and so near that it is spread evenly."""
    case = Case.of([700, 33], kv_heads=1, group=4, d=64, size=size)
    assert_rounded(case.ours(kernel), case.expected())


def test_a_run_does_not_depend_on_the_others(kernel: Kernel) -> None:
    case = Case.of([40, 500, 129, 7], kv_heads=2, group=3, d=64)
    together = case.ours(kernel)
    for i in range(2):
        runs = slice(2 * i, 2 * i + 2)
        alone = Case(case.q[i : i + 1], case.k, case.v, case.starts[runs], case.lengths[runs])
        assert alone.ours(kernel).equal(together[i : i + 1])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(kernel: Kernel, threads: int) -> None:
    case = Case.of([900, 3, 400, 64, 8, 1], kv_heads=2, group=4, d=64)
    assert sum(case.lengths) >= ragged_attention.MIN_PARALLEL
    expected = case.ours(kernel)
    try:
        torch.set_num_threads(threads)
        assert case.ours(kernel).equal(expected)
    finally:
        torch.set_num_threads(1)


def test_queries_are_read_where_they_lie(kernel: Kernel) -> None:
    """Query heads that are a part of a wider row."""
    case = Case.of([20, 30], kv_heads=1, group=2, d=32)
    wider_q = torch.cat([case.q, case.q], 1)
    assert case.ours(kernel).equal(
        Case(wider_q[:, :2], case.k, case.v, case.starts, case.lengths).ours(kernel)
    )


def test_what_is_no_number_shows(kernel: Kernel) -> None:
    """A broken cache is seen, not averaged away."""
    for tensor in ("k", "v"):
        case = Case.of([50, 50], kv_heads=1, group=2, d=32)
        getattr(case, tensor)[case.starts[0] + 10, 3] = float("nan")
        ours = case.ours(kernel)
        assert ours[0].isnan().any() and not ours[1].isnan().any()


def test_what_it_does_not_take() -> None:
    q, k = torch.zeros(1, 4, 64).bfloat16(), torch.zeros(9, 64).bfloat16()
    assert not ragged_attention.supports(q.float(), k.float(), 4)
    assert not ragged_attention.supports(q[..., :40], k[:, :40], 4)
    assert not ragged_attention.supports(q, k[:, :32], 4)
    assert not ragged_attention.supports(q, k, ragged_attention.MAX_GROUP + 1)
