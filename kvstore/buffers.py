"""Byte buffers that torch and the operating system can both see. Knows nothing of chunks."""

import torch
from torch import Tensor


def allocate(nbytes: int, *, pin: bool = False) -> Tensor:
    """An uninitialised uint8 tensor ``[nbytes]`` in host memory.

    Pinned memory makes copies to a GPU asynchronous; without a GPU ``pin`` is ignored.
    """
    pinned = pin and torch.cuda.is_available()
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)


def view_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous host uint8 tensor ``[n]``, without a copy."""
    return memoryview(tensor.numpy().data)


def typed_view(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """``raw`` (uint8 ``[n]``, any device) as ``dtype`` and ``shape``, a view where aligned."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(shape)
