"""Small tensors that are made in host memory and needed on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device | None) -> Tensor:
    """Return a tensor on the device; None, or one that is not in host memory: x itself."""
    if device is None or device.type == "cpu" or x.device.type != "cpu":
        return x
    return x.pin_memory().to(device, non_blocking=True)
