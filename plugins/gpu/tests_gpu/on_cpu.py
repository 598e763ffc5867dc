"""A plugin that has the kernels of a GPU asked on a CPU, where tests let them be used."""

from __future__ import annotations

from typing import Any

from kvstitch.service.plugins import hookimpl
from kvstitch.service.worker.kernels.device_kernels import DeviceKernels
from kvstitch_gpu.gpu_kernels import GpuKernels

KERNELS: DeviceKernels = GpuKernels()


@hookimpl
def device_kernels(device: Any) -> Any:
    return KERNELS
