"""A Triton kernel is used only after it gave once what torch gives."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

import kvstitch_gpu
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import kv_placement_gpu, row_kernels, shift_gpu, triton_support
from kvstitch_gpu.gpu_kernels import GpuKernels

ONES = torch.ones(3)


@pytest.mark.parametrize("off", [0.0, 0.5])
def test_it_is_used_if_it_agrees(off: float, caplog: pytest.LogCaptureFixture) -> None:
    assert triton_support.matches_torch("sums", lambda: (ONES + off, ONES), tolerance=off)
    assert not caplog.records


@pytest.mark.parametrize("found", [1.75, float("nan")])
def test_one_that_differs_is_left_alone(found: float, caplog: pytest.LogCaptureFixture) -> None:
    ours = torch.tensor([1.0, found, 1.0])
    with caplog.at_level(logging.WARNING, "kvstitch.kernels"):
        assert not triton_support.matches_torch("sums", lambda: (ours, ONES), tolerance=0.5)
    assert "sums is off by" in caplog.text


def test_one_that_does_not_run_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> tuple[Tensor, Tensor]:
        raise RuntimeError("out of resources")

    with caplog.at_level(logging.WARNING, "kvstitch.kernels"):
        assert not triton_support.matches_torch("sums", fails, tolerance=0.5)
    assert "sums does not run here: out of resources" in caplog.text


def test_a_comparison_is_made_once_for_each_kind() -> None:
    made = []

    @triton_support.verified("heads of {}", tolerance=0.5)
    def agrees(device: torch.device, d: int) -> tuple[Tensor, Tensor]:
        made.append(d)
        return ONES * d, ONES

    cpu = torch.device("cpu")
    assert [agrees(cpu, d) for d in (1, 2, 1)] == [True, False, True] and made == [1, 2]


def test_a_cpu_is_left_to_torch() -> None:
    """The plugin has nothing for it, and a kernel takes none of its tensors."""
    assert kvstitch_gpu.device_kernels(torch.device("cpu")) is None
    kernels, x = GpuKernels(), torch.zeros(2, 4, 64, dtype=torch.bfloat16)
    rows, rope = torch.arange(2), RotaryTable(torch.ones(32), 1.0, 10)
    assert kernels.attend(x, x, x, rows, 1.0) is None
    assert kernels.attend_with_scores(x, x, x, rows, rows.float(), 1.0) is None
    assert kernels.attend_runs(x, x[0], x[0], torch.ones(2, 4).long(), 1, 1.0) is None
    assert kernels.rotate(rope, x, rows) is None
    assert not kernels.write(rope, (x, x), x, x, rows) and not kernels.can_keep(x)
    assert not row_kernels.can_normalise(x[0]) and not row_kernels.can_multiply(x[0])
    assert not shift_gpu.supports(x) and not kv_placement_gpu.supports(x)
