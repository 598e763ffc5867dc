"""Complete reads and durable writes of files."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ChunkCorrupt
from kvstore.format.byte_ranges import ByteProgress

_CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def read_fully(fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Fill the buffers from `offset` on; preadv into existing memory is the fastest way.

    Raises:
        ChunkCorrupt: the file ends before the buffers are full.
    """
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        count = os.preadv(fd, pending, offset)  # reads at most 2 GiB per call
        if count == 0:
            raise ChunkCorrupt("the file is shorter than its header says")
        offset += count
        pending = _advance(pending, count)


def read_scattered(
    fd: int, parts: Sequence[tuple[int, memoryview]], progress: ByteProgress | None = None
) -> None:
    """Fill each buffer from its offset, with one preadv per buffer.

    Ranges in the page cache are read at once. At the first one that is not cached, the kernel is
    told about all remaining ranges, so that the disk works on them in parallel. One after the
    other, a few small ranges would take as long as the whole file.

    Args:
        fd: open file.
        parts: offset and buffer of each range.
        progress: called after each range with the number of bytes read so far.

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
    """Whether the page cache holds that byte; True where the system cannot tell."""
    return not _CAN_ADVISE or _read_cached(fd, memoryview(bytearray(1)), offset)


def write_fully(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all buffers one after the other."""
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        pending = _advance(pending, os.writev(fd, pending))


def write_file(path: Path, buffers: Sequence[memoryview], *, sync: bool) -> None:
    """Write a new file, durable if `sync`; on failure no file is left."""
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
    """Write to `temporary`, then rename it to `target` (`root/??/??/<name>`).

    Missing directories are created. With `sync` the content is durable before the file becomes
    visible, and the name is durable when this returns.
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
        target.unlink(missing_ok=True)  # otherwise a file would stay that the index does not count
        raise


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (fsync)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path) -> int:
    """Lock a file; the lock lasts until the returned descriptor is closed.

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
    """Fill the buffer if all of it is in the page cache; whether it was."""
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
