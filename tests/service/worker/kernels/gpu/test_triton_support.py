"""A Triton kernel is used only after it gave once what torch gives."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from service.worker.kernels.gpu import triton_support

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
