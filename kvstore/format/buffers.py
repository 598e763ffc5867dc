"""Byte buffers that torch and the operating system can both use, and ranges of bytes in them.

Fresh memory costs a page fault per page, and the kernel has to clear it, which takes as long as the
copy that fills it. So readers use a `BufferPool`, which reuses its buffers.
"""

import logging
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_log = logging.getLogger(__name__)

POOLED_FROM = 1 << 20
_CLASSES_PER_DOUBLING = 8
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class BufferPool:
    """Hands out large buffers and takes them back when no tensor or view of them exists any more.

    It keeps at most `idle_bytes` for later use. It is called from several threads and from the
    garbage collector, without a lock, because single operations on a deque are atomic.
    """

    def __init__(self, idle_bytes: int = 256 << 20) -> None:
        self._bound = idle_bytes
        self._idle: deque[mmap.mmap] = deque()

    @property
    def idle_bytes(self) -> int:
        """Bytes of the buffers that are not in use."""
        return sum(map(len, tuple(self._idle)))

    def allocate(self, nbytes: int, *, pin: bool = False) -> Tensor:
        """Allocate like the function `allocate`, but reuse an idle buffer where one fits."""
        if nbytes < POOLED_FROM:
            return allocate(nbytes, pin=pin)
        size, kind = _size_class(nbytes), _kind(pin)
        pages = self._take(size, kind) or _map(size, kind)
        lease = np.frombuffer(pages, dtype=np.uint8, count=nbytes)
        finalizer = weakref.finalize(lease, self._give_back, pages)
        finalizer.atexit = False
        return torch.from_numpy(lease)

    def clear(self) -> None:
        """Free the idle buffers."""
        self._idle.clear()

    def _take(self, size: int, kind: type[mmap.mmap]) -> mmap.mmap | None:
        for pages in reversed(tuple(self._idle)):  # the latest is most likely in the CPU's cache
            if len(pages) == size and type(pages) is kind:
                with suppress(ValueError, IndexError):  # another thread was faster
                    self._idle.remove(pages)
                    return pages
        return None

    def _give_back(self, pages: mmap.mmap) -> None:
        self._idle.append(pages)
        while self.idle_bytes > self._bound:
            with suppress(IndexError):
                self._idle.popleft()


def allocate(nbytes: int, *, pin: bool = False) -> Tensor:
    """Allocate uint8 `[nbytes]` in host memory; without a GPU `pin` is ignored. Whoever copies out
    of it without waiting must hold the tensor until the copy is done."""
    kind = _kind(pin)
    if nbytes < POOLED_FROM:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=kind is PinnedPages)
    return torch.frombuffer(_map(nbytes, kind), dtype=torch.uint8)  # keeps the mapping alive


def view_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous host uint8 tensor `[n]`, without a copy."""
    return memoryview(tensor.numpy().data)


def typed_view(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return `raw` (uint8 `[n]`, any device) as `dtype` and `shape`, to read: a view where it is
    aligned, else a copy."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(shape)


def write_values(raw: Tensor, values: Tensor) -> None:
    """Write values, whatever their strides, into `raw` (uint8 `[n]`), wherever that begins."""
    if raw.storage_offset() % values.dtype.itemsize:  # no view of it has their dtype
        raw.copy_(values.contiguous().view(torch.uint8).flatten())
    else:
        raw.view(values.dtype).view(values.shape).copy_(values)


def _size_class(nbytes: int) -> int:
    """Round `nbytes` up by less than an eighth, so that a buffer fits data of similar size."""
    step = (1 << (nbytes - 1).bit_length() - 1) // _CLASSES_PER_DOUBLING
    return -(-nbytes // step) * step


class PinnedPages(mmap.mmap):
    """Pages that CUDA can read asynchronously."""

    _address = 0

    def pin(self) -> None:
        """Register the pages with CUDA; if it refuses (limit on locked memory), they stay plain."""
        address = np.frombuffer(self, dtype=np.uint8).ctypes.data
        refused = int(_cuda().cudaHostRegister(address, len(self), _PORTABLE))
        if refused:
            _log.warning("%d bytes were not pinned (CUDA error %d)", len(self), refused)
        else:
            self._address = address

    def __del__(self) -> None:
        if self._address:
            with suppress(Exception):  # at process exit CUDA may already be gone
                _cuda().cudaHostUnregister(self._address)


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _kind(pin: bool) -> type[mmap.mmap]:
    return PinnedPages if pin and torch.cuda.is_available() else mmap.mmap


def _map(nbytes: int, kind: type[mmap.mmap] = mmap.mmap) -> mmap.mmap:
    """Map fresh pages; huge ones if the kernel has them."""
    pages = kind(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    if isinstance(pages, PinnedPages):
        pages.pin()
    return pages


ByteProgress = Callable[[int], None]
"""Called with the number of requested bytes that are in place; the number never falls."""


class ByteRange(NamedTuple):
    """Bytes `[start, end)` of the data section, all of one layer."""

    layer: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def total_bytes(ranges: Iterable[ByteRange]) -> int:
    return sum(end - start for _, start, end in ranges)


def coalesced(ranges: Iterable[ByteRange]) -> Iterator[tuple[int, int]]:
    """Join neighbouring ranges, also across layers; each `(start, end)` is one read of a file."""
    begun: tuple[int, int] | None = None
    for _, start, end in ranges:
        if begun is None:
            begun = start, end
        elif begun[1] == start:
            begun = begun[0], end
        else:
            yield begun
            begun = start, end
    if begun is not None:
        yield begun


def gather(
    data: Tensor, ranges: Sequence[ByteRange], target: Tensor, progress: ByteProgress | None = None
) -> None:
    """Copy the ranges of `data` one after the other into `target`; both are host uint8."""
    source, view = view_bytes(data), view_bytes(target)
    offset = 0
    for number, (layer, start, end) in enumerate(ranges):
        view[offset : offset + end - start] = source[start:end]
        offset += end - start
        if progress and (number + 1 == len(ranges) or ranges[number + 1].layer != layer):
            progress(offset)
