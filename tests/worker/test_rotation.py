"""The kernel that turns stored rows to their positions, against torch: the same to the bit."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from service.worker.kernels import rotation
from service.worker.kernels.library import load
from service.worker.kernels.rotation import Kernel
from service.worker.rope import RotaryTable

ROWS, HEADS = 37, 3


@pytest.fixture(scope="module")
def kernel(built_kernels: Path) -> Kernel:
    library = load(built_kernels / "_rotation.so", "rotation")
    if library is None:
        pytest.skip("this CPU has no AVX-512")
    return Kernel(library)


def table(d: int) -> RotaryTable:
    return RotaryTable(10000.0 ** -(torch.arange(0, d, 2) / d), 1.25, 500)


@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_as_torch_to_the_bit(kernel: Kernel, d: int) -> None:
    """From a stored chunk into a head-major cache, at positions in any order."""
    random = torch.Generator().manual_seed(d)
    turns = table(d)
    x = torch.randn(ROWS, HEADS + 1, d, generator=random).bfloat16()[:, 1:]
    x[3, 1, 2], x[4, 0, 0] = float("inf"), float("nan")
    positions = torch.randint(0, 500, (ROWS,), generator=random)
    expected = turns.turn(positions)(x)
    cache = torch.zeros(HEADS, ROWS + 9, d).bfloat16()
    kernel.rotate(x, positions, turns.cos, turns.sin, cache[:, 4 : 4 + ROWS].transpose(0, 1))
    ours = cache[:, 4 : 4 + ROWS].transpose(0, 1)
    assert ours.isnan().equal(expected.isnan())
    assert ours.nan_to_num().equal(expected.nan_to_num())
    assert not cache[:, :4].any() and not cache[:, 4 + ROWS :].any()


@pytest.mark.parametrize("d", [32, 64, 96])
def test_a_copy_is_what_was_there(kernel: Kernel, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, from a stored chunk into a head-major cache; also where torch has to do it."""
    x = torch.randn(ROWS, HEADS + 1, d).bfloat16()[:, 1:]
    cache = torch.zeros(2, HEADS, ROWS + 9, d).bfloat16()
    into = cache[:, :, 4 : 4 + ROWS].transpose(1, 2)
    kernel.copy(x, into[0])
    monkeypatch.setattr(rotation, "kernel", lambda: None)
    rotation.copy(x, into[1])
    assert into[0].equal(x) and into[1].equal(x)
    assert not cache[:, :, :4].any() and not cache[:, :, 4 + ROWS :].any()
    wide = torch.zeros(ROWS, HEADS, d)
    monkeypatch.setattr(rotation, "kernel", lambda: kernel)
    rotation.copy(x, wide)  # of another dtype
    assert wide.equal(x.float())


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 2, 211])
def test_threads_change_nothing(
    kernel: Kernel, threads: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are fewer rows than threads."""
    monkeypatch.setattr(rotation, "MIN_PARALLEL", 1)
    turns, x = table(64), torch.randn(rows, 5, 64).bfloat16()[:, 1:4]
    positions = torch.randperm(500)[:rows]
    cache, before = torch.zeros(3, rows + 2, 64).bfloat16(), torch.get_num_threads()
    out = cache[:, 1:-1].transpose(0, 1)
    try:
        torch.set_num_threads(threads)
        kernel.rotate(x, positions, turns.cos, turns.sin, out)
    finally:
        torch.set_num_threads(before)
    assert out.equal(turns.turn(positions)(x))
    assert not cache[:, 0].any() and not cache[:, -1].any()


def test_few_rows_wake_no_threads(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock()
    monkeypatch.setattr(kernel, "_rotate", asked)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    turns = table(64)
    for rows, threads in ((1, 1), (rotation.MIN_PARALLEL // 64, 3)):
        x, positions = torch.zeros(rows, 1, 64).bfloat16(), torch.zeros(rows, dtype=torch.long)
        kernel.rotate(x, positions, turns.cos, turns.sin, x)
        assert asked.call_args.args[-1] == threads


def test_the_table_uses_it(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "kernel", lambda: kernel)
    turns, x = table(64), torch.randn(5, 2, 64).bfloat16()
    positions = torch.arange(7, 12)
    assert turns.rotate(x, positions).equal(turns.turn(positions)(x))


def test_others_are_left_to_torch() -> None:
    x, positions = torch.randn(5, 2, 64).bfloat16(), torch.arange(5)
    assert rotation.served(x.float(), positions, x.float()) is None
    assert rotation.served(x[..., :40], positions, x[..., :40]) is None
    assert rotation.served(x, torch.arange(10)[::2], x) is None
    assert rotation.served(x, positions.int(), x) is None
