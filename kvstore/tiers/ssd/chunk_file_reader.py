"""Reads chunk files: the header, the whole chunk, or some ranges of it.

A whole file that is not in the page cache is read without it (O_DIRECT), in segments, several at a
time. The disk works in parallel and writes directly to the final place, and the first layers are
verified and used while the rest is still being read. The page cache would cost an extra copy, and
memory that the memory tier makes superfluous. Files that are in the page cache anyway (chunks
written lately) are read from there.
"""

import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, TierUnavailable
from kvstitch.kvstore.format.buffers import (
    BufferPool,
    ByteProgress,
    ByteRange,
    coalesced,
    total_bytes,
    view_bytes,
)
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstitch.kvstore.tiers.base import ChunkProgress
from kvstitch.kvstore.tiers.ssd.directory_scan import StoredFile
from kvstitch.kvstore.tiers.ssd.file_io import is_cached, read_fully, read_scattered

_PAGE = 4096  # O_DIRECT needs offsets, lengths and addresses that are multiples of this
_STEP = 1 << 20  # bytes per read from the page cache: still in the CPU's cache when verified
_SEGMENT = 2 << 20  # bytes per read with O_DIRECT
_DIRECT_FROM = 1 << 20  # for smaller files O_DIRECT does not pay


class ChunkFileReader:
    """Reads open files into reused buffers."""

    def __init__(self, *, pin: bool, streams: int) -> None:
        self._pin = pin
        self._streams = streams
        self._buffers = BufferPool()
        self._threads: ThreadPoolExecutor | None = None

    def start(self) -> None:
        self._threads = ThreadPoolExecutor(self._streams, thread_name_prefix="kvstore-disk")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._buffers.clear()

    def header(self, fd: int, file: StoredFile) -> ChunkHeader:
        header = bytearray(file.header_bytes)
        read_fully(fd, [memoryview(header)], 0)
        return _parse(header, file)

    def chunk(self, fd: int, file: StoredFile, on_progress: ChunkProgress | None) -> EncodedChunk:
        """Read the whole chunk; `on_progress` is called while it arrives and may raise."""
        whole = self._buffers.allocate(-(-file.file_bytes // _PAGE) * _PAGE, pin=self._pin)
        data = whole[file.header_bytes : file.file_bytes]
        view = view_bytes(whole)
        header: ChunkHeader | None = None

        def progress(done: int) -> None:
            nonlocal header
            if header is None and done >= file.header_bytes:
                header = _parse(view[: file.header_bytes], file)
            if header is not None and on_progress is not None:
                on_progress(header, data, done - file.header_bytes)

        direct = (
            file.file_bytes >= _DIRECT_FROM
            and whole.data_ptr() % _PAGE == 0
            and not is_cached(fd, file.file_bytes - 1)
            and _bypass_page_cache(fd)
        )
        if direct:
            self._read_segments(fd, view, file.file_bytes, progress)
        else:
            for start in range(0, file.file_bytes, _STEP):
                end = min(start + _STEP, file.file_bytes)
                read_fully(fd, [view[start:end]], start)
                progress(end)
        assert header is not None
        return EncodedChunk(header, data)

    def ranges(
        self,
        fd: int,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None,
    ) -> Tensor:
        """Read some ranges; `on_progress` is called while they arrive and may raise."""
        data = self._buffers.allocate(total_bytes(ranges), pin=self._pin)
        rest = view_bytes(data)
        parts: list[tuple[int, memoryview]] = []
        for start, end in coalesced(ranges):
            parts.append((header.data_start + start, rest[: end - start]))
            rest = rest[end - start :]
        read_scattered(fd, parts, partial(on_progress, header, data) if on_progress else None)
        return data

    def _read_segments(self, fd: int, view: memoryview, size: int, progress: ByteProgress) -> None:
        if self._threads is None:
            raise TierUnavailable("closed")
        reads: list[Future[None]] = []
        try:
            for start in range(0, size, _SEGMENT):
                segment = view[start : start + _SEGMENT]
                end = min(start + _SEGMENT, size)
                reads.append(self._threads.submit(_read_segment, fd, segment, start, end - start))
            for number, read in enumerate(reads):
                read.result()
                progress(min((number + 1) * _SEGMENT, size))
        finally:
            # No read may go on after the descriptor is closed: its number may be reused.
            for read in reads:
                read.cancel()
            wait(reads)


def _read_segment(fd: int, segment: memoryview, offset: int, nbytes: int) -> None:
    """Fill a segment; the last one only up to the end of the file."""
    try:
        got = os.preadv(fd, [segment], offset)
    except OSError:  # a real fault of the disk shows again in read_fully below
        got = 0
    if got < nbytes:  # a short read may end inside a page, where O_DIRECT cannot continue
        _use_page_cache(fd)
        read_fully(fd, [segment[got:nbytes]], offset + got)


def _bypass_page_cache(fd: int) -> bool:
    """Turn on O_DIRECT for this descriptor; False where the system does not support it."""
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # e.g. tmpfs before Linux 6.6
        return False
    return True


def _use_page_cache(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDONLY)


def _parse(header: bytearray | memoryview, file: StoredFile) -> ChunkHeader:
    parsed = parse_header(header)
    if parsed.file_bytes != file.file_bytes:
        raise ChunkCorrupt(f"file has {file.file_bytes} bytes, its header says {parsed.file_bytes}")
    return parsed
