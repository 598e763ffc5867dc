"""Kernels in Triton and recorded CUDA graphs for kvstitch's own engine on NVIDIA GPUs."""

from __future__ import annotations

from typing import Any

from kvstitch.service.plugins import hookimpl


@hookimpl
def device_kernels(device: Any) -> Any:
    """Return the kernels of a GPU."""
    if device.type != "cuda":
        return None
    from kvstitch_gpu.gpu_kernels import GpuKernels

    return GpuKernels()
