"""What the Triton kernels share: Triton, where it is installed, and the check before a first use.

A kernel is run once on a device against torch; if it does not compile there or differs, it is not
used. Knows no kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:  # comes with torch's CUDA builds
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["HALF_PRECISION", "jit", "matches_torch", "tl"]

log = logging.getLogger("kvstitch.kernels")

HALF_PRECISION = (torch.bfloat16, torch.float16)


def jit(function: Callable[..., None], *unspecialised: str) -> Any:
    """The kernel of this function, to be launched as `kernel[grid](...)`; None without Triton.

    unspecialised: arguments that vary from call to call; it is not compiled anew where one is 1 or
    a multiple of 16.
    """
    return None if triton is None else triton.jit(function, do_not_specialize=unspecialised)


def matches_torch(
    name: str, compare: Callable[[], tuple[Tensor, Tensor]], tolerance: float
) -> bool:
    """Whether the two tensors that `compare` gives, ours and torch's, differ by at most
    `tolerance`; logs a warning where they do not or where ours does not run."""
    try:
        ours, theirs = compare()
    except Exception as error:
        log.warning("the Triton kernel for %s does not run here: %s", name, error)
        return False
    off = float((ours.float() - theirs.float()).abs().max())
    close = off <= tolerance  # not so if it is no number
    if not close:
        log.warning("the Triton kernel for %s is off by %.3g here: it is not used", name, off)
    return close
