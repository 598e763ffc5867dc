"""Byte buffers that torch and the operating system can both see. Knows nothing of chunks.

Fresh memory costs a fault per page and has to be cleared by the kernel: as much as the copy that
fills it. So whoever reads again and again has a :class:`BufferPool`, whose buffers come back.
"""

import logging
import mmap
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

_log = logging.getLogger(__name__)

POOLED_FROM = 1 << 20
_CLASSES_PER_DOUBLING = 8
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class BufferPool:
    """Hands out large buffers and takes them back when nobody holds them any more.

    A buffer is in use as long as any tensor, array or memoryview of it is. Safe to call from
    several threads and from the garbage collector: no lock, a deque changes in single steps.

    Args:
        idle_bytes: bound on the memory kept for later.
    """

    def __init__(self, idle_bytes: int = 256 << 20) -> None:
        self._bound = idle_bytes
        self._idle: deque[mmap.mmap] = deque()

    @property
    def idle_bytes(self) -> int:
        return sum(map(len, tuple(self._idle)))

    def allocate(self, nbytes: int, *, pin: bool = False) -> Tensor:
        """As the function of the same name."""
        if nbytes < POOLED_FROM:
            return allocate(nbytes, pin=pin)
        size, kind = _size_class(nbytes), _kind(pin)
        pages = self._take(size, kind) or _map(size, kind)
        lease = np.frombuffer(pages, dtype=np.uint8, count=nbytes)
        finalizer = weakref.finalize(lease, self._give_back, pages)
        finalizer.atexit = False
        return torch.from_numpy(lease)

    def clear(self) -> None:
        """Forget what is idle."""
        self._idle.clear()

    def _take(self, size: int, kind: type[mmap.mmap]) -> mmap.mmap | None:
        for pages in reversed(tuple(self._idle)):  # the latest is the likeliest to be in a cache
            if len(pages) == size and type(pages) is kind:
                with suppress(ValueError, IndexError):  # another thread took it
                    self._idle.remove(pages)
                    return pages
        return None

    def _give_back(self, pages: mmap.mmap) -> None:
        self._idle.append(pages)
        while self.idle_bytes > self._bound:
            with suppress(IndexError):
                self._idle.popleft()


def allocate(nbytes: int, *, pin: bool = False) -> Tensor:
    """An uninitialised uint8 tensor ``[nbytes]`` in host memory.

    Pinned memory makes copies to a GPU asynchronous; without a GPU ``pin`` is ignored. Whoever
    copies out of it without waiting holds it until the copy is over.
    """
    kind = _kind(pin)
    if nbytes < POOLED_FROM:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=kind is PinnedPages)
    return torch.frombuffer(_map(nbytes, kind), dtype=torch.uint8)  # keeps the mapping alive


def view_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous host uint8 tensor ``[n]``, without a copy."""
    return memoryview(tensor.numpy().data)


def typed_view(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """``raw`` (uint8 ``[n]``, any device) as ``dtype`` and ``shape``, a view where aligned."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(shape)


def _size_class(nbytes: int) -> int:
    """``nbytes`` rounded up by less than an eighth, so that buffers fit others' data too."""
    step = (1 << (nbytes - 1).bit_length() - 1) // _CLASSES_PER_DOUBLING
    return -(-nbytes // step) * step


class PinnedPages(mmap.mmap):
    """Pages that CUDA may read while nobody waits. torch's own pinned memory comes in powers of
    two: a chunk of 64 MiB and its header would take 128."""

    _address = 0

    def pin(self) -> None:
        """Where CUDA refuses (a bound on locked memory), they stay ordinary pages."""
        address = np.frombuffer(self, dtype=np.uint8).ctypes.data
        refused = int(_cuda().cudaHostRegister(address, len(self), _PORTABLE))
        if refused:
            _log.warning("%d bytes were not pinned (CUDA error %d)", len(self), refused)
        else:
            self._address = address

    def __del__(self) -> None:
        if self._address:
            with suppress(Exception):  # at the end of a process CUDA may be gone before us
                _cuda().cudaHostUnregister(self._address)


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _kind(pin: bool) -> type[mmap.mmap]:
    return PinnedPages if pin and torch.cuda.is_available() else mmap.mmap


def _map(nbytes: int, kind: type[mmap.mmap] = mmap.mmap) -> mmap.mmap:
    """Fresh pages, huge ones where the kernel has them."""
    pages = kind(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    if isinstance(pages, PinnedPages):
        pages.pin()
    return pages
