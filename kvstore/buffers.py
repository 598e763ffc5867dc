"""Byte buffers that torch and the operating system can both see. Knows nothing of chunks."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_HUGE_FROM = 8 << 20


def allocate(nbytes: int, *, pin: bool = False) -> Tensor:
    """An uninitialised uint8 tensor ``[nbytes]`` in host memory.

    Pinned memory makes copies to a GPU asynchronous; without a GPU ``pin`` is ignored.
    """
    if pin and torch.cuda.is_available():
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    if nbytes < _HUGE_FROM or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(nbytes, dtype=torch.uint8)
    # Filling fresh memory costs a fault per page, half the time of a read from the page cache.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)  # keeps the mapping alive


def view_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous host uint8 tensor ``[n]``, without a copy."""
    return memoryview(tensor.numpy().data)


def typed_view(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """``raw`` (uint8 ``[n]``, any device) as ``dtype`` and ``shape``, a view where aligned."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(shape)
