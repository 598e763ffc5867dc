"""What the Triton kernels share: Triton itself, where installed, and the check before a first use.

A kernel is run once per device and compared with torch. If it does not compile there, or its result
differs, it is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

try:  # comes with torch's CUDA builds
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["HALF_PRECISION", "jit", "matches_torch", "takes_heads", "tl", "verified"]

log = logging.getLogger("kvstitch.kernels")

HALF_PRECISION = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256


def jit(function: Callable[..., None], *unspecialised: str) -> Any:
    """Return the kernel, launched as `kernel[grid](...)`; None where Triton is not installed."""
    return None if triton is None else triton.jit(function, do_not_specialize=unspecialised)


def takes_heads(kernel: Any, x: Tensor) -> bool:
    """Return whether a kernel that moves whole heads could take x `[.., .., head_dim]`: it exists,
    and x is on a GPU, in half precision, each head in one piece."""
    fits = x.dtype in HALF_PRECISION and x.shape[-1] <= MAX_HEAD_DIM and x.stride(-1) == 1
    return kernel is not None and x.device.type == "cuda" and fits


def verified(
    name: str, tolerance: float
) -> Callable[[Callable[..., tuple[Tensor, Tensor]]], Callable[..., bool]]:
    """Make a comparison, which returns a kernel's result and torch's, the check before its first
    use: it returns whether they agree, and is run once for each device and its further arguments,
    which are put into the name."""

    def check(compare: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., bool]:
        @cache
        @wraps(compare)
        def is_verified(device: torch.device, *more: Any) -> bool:
            what = name.format(*more)
            return matches_torch(what, lambda: compare(device, *more), tolerance)

        return is_verified

    return check


def matches_torch(
    name: str, compare: Callable[[], tuple[Tensor, Tensor]], tolerance: float
) -> bool:
    """Return whether a kernel runs here and gives what torch gives; logs a warning if not."""
    try:
        ours, theirs = compare()
    except Exception as error:
        log.warning("the Triton kernel for %s does not run here: %s", name, error)
        return False
    off = float((ours.float() - theirs.float()).abs().max())
    close = off <= tolerance  # false for NaN
    if not close:
        log.warning("the Triton kernel for %s is off by %.3g here: it is not used", name, off)
    return close
