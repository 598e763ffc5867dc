"""Whole reads and writes over file descriptors. Knows nothing of chunks."""

import os
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ChunkCorrupt


def read_fully(fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Fill the buffers from ``offset`` on; preadv into memory that exists is the fastest way.

    Raises:
        ChunkCorrupt: the file ends before the buffers are full.
    """
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        count = os.preadv(fd, pending, offset)  # at most 2 GiB a call
        if count == 0:
            raise ChunkCorrupt("the file is shorter than its header says")
        offset += count
        pending = _advance(pending, count)


def write_fully(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all buffers one after the other."""
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        pending = _advance(pending, os.writev(fd, pending))


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _advance(buffers: list[memoryview], count: int) -> list[memoryview]:
    rest: list[memoryview] = []
    for buffer in buffers:
        if count < len(buffer):
            rest.append(buffer[count:])
        count = max(0, count - len(buffer))
    return rest
