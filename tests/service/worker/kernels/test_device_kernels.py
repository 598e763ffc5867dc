"""A device's kernels are a plugin's, or none."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from kvstitch.service.worker.kernels import device_kernels
from kvstitch.service.worker.kernels.cpu import native
from kvstitch.service.worker.kernels.device_kernels import DeviceKernels, kernels_of, why_missing

GPU = torch.device("cuda")


class Own(DeviceKernels):
    """Those of a plugin."""


@pytest.fixture(params=[None, Own()], ids=["none", "own"])
def made(request, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceKernels | None]:
    hooks = SimpleNamespace(device_kernels=lambda device: request.param)
    monkeypatch.setattr(device_kernels, "hooks", lambda: hooks)
    kernels_of.cache_clear()
    yield request.param
    kernels_of.cache_clear()


def test_a_plugin_brings_them(made: DeviceKernels | None) -> None:
    assert kernels_of(GPU) is kernels_of(GPU)
    assert kernels_of(GPU) is made or (made is None and type(kernels_of(GPU)) is DeviceKernels)


def test_it_is_said_what_is_missing(made: DeviceKernels | None) -> None:
    assert ("kvstitch-gpu" in (why_missing(GPU) or "")) == (made is None)
    assert why_missing(torch.device("mps")) is None
    assert why_missing(torch.device("cpu")) == native.why_missing()
