"""Memory for tensors that are streamed through again and again: weights and KV.

On a CPU it is asked for in huge pages, where the system grants them on request: the hardware's
prefetch stops at a page's end, so reading weights row by row should gain (torch's own switch for
huge pages gave about a fifth, one run each; this way to them has not been measured). Elsewhere it
is torch's own.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

# Below this a huge page would be mostly empty.
MIN_BYTES = 4 << 20


def zeros(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros, in huge pages if it is large and on a CPU."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes < MIN_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them: ordinary pages then
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))
