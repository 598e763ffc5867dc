"""Whole reads and durable writes of files. Knows nothing of chunks."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ChunkCorrupt
from kvstore.format.byte_ranges import ByteProgress

_CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def read_fully(fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Fill the buffers from `offset` on; preadv into memory that exists is the fastest way.

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


def read_scattered(
    fd: int, parts: Sequence[tuple[int, memoryview]], progress: ByteProgress | None = None
) -> None:
    """Fill each buffer from its offset; one preadv each, and `progress` is told after each.

    Those in the page cache are read at once. From the first that is not, the kernel is asked for
    all the rest together, so that the disk works on them in parallel: one after the other, a few
    small ranges take as long as the whole file.

    Raises:
        ChunkCorrupt: the file ends before a buffer is full.
    """
    advised = not _CAN_ADVISE
    done = 0
    for number, (offset, buffer) in enumerate(parts):
        if advised or not _read_cached(fd, buffer, offset):
            if not advised:
                for later, wanted in parts[number:]:
                    os.posix_fadvise(fd, later, len(wanted), os.POSIX_FADV_WILLNEED)
                advised = True
            read_fully(fd, [buffer], offset)
        done += len(buffer)
        if progress is not None:
            progress(done)


def is_cached(fd: int, offset: int) -> bool:
    """Whether the page cache holds that byte. Where the system cannot tell: yes."""
    return not _CAN_ADVISE or _read_cached(fd, memoryview(bytearray(1)), offset)


def write_fully(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all buffers one after the other."""
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        pending = _advance(pending, os.writev(fd, pending))


def write_file(path: Path, buffers: Sequence[memoryview], *, sync: bool) -> None:
    """A new file with the buffers in it; with `sync` it is durable. Nothing stays on failure."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        write_fully(fd, buffers)
        if sync:
            os.fsync(fd)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(fd)


def write_atomically(
    temporary: Path, target: Path, root: Path, buffers: Sequence[memoryview], *, sync: bool
) -> None:
    """Write `temporary` and rename it to `root/??/??/<target>`, new directories included.

    With `sync` the file is durable before it is visible, and its name afterwards.
    """
    write_file(temporary, buffers, sync=sync)
    try:
        new_directory = not target.parent.is_dir()
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, target)
        if sync:
            sync_directory(target.parent)
            if new_directory:
                sync_directory(target.parent.parent)
                sync_directory(root)
    except BaseException:
        temporary.unlink(missing_ok=True)
        target.unlink(missing_ok=True)  # else a file that nobody counts would stay
        raise


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path) -> int:
    """An open descriptor that holds the lock on a file until it is closed.

    Raises:
        OSError: another process holds it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _read_cached(fd: int, buffer: memoryview, offset: int) -> bool:
    """Fill the buffer if the page cache has it all."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
    except OSError:  # not cached, or a filesystem that cannot tell
        return False


def _advance(buffers: list[memoryview], count: int) -> list[memoryview]:
    rest: list[memoryview] = []
    for buffer in buffers:
        if count < len(buffer):
            rest.append(buffer[count:])
        count = max(0, count - len(buffer))
    return rest
