"""Complete reads and durable writes of files that only this user may see.

What is not a regular file (a directory, a FIFO, a socket, a symbolic link) is never read, replaced
or removed here: it is not ours, and opening a FIFO would wait for ever.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from kvstitch.kvstore.errors import ChunkCorrupt
from kvstitch.kvstore.format.buffers import ByteProgress

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def open_regular(path: Path) -> int:
    """Open a regular file for reading, without ever waiting."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except PermissionError as error:  # one file's fault, not the disk's
        raise ChunkCorrupt(f"{path} may not be read") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise ChunkCorrupt(f"{path} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ChunkCorrupt(f"{path} is not a regular file")
    return fd


def is_regular(path: Path) -> bool:
    """Return whether there is a regular file of that name; a symbolic link is none."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


def remove_regular(path: Path) -> None:
    """Remove a regular file; anything else stays as it is."""
    if is_regular(path):
        path.unlink(missing_ok=True)


def require_free_name(path: Path) -> None:
    """Check that a file can be moved to that name: nothing or a regular file is there."""
    try:
        found = os.lstat(path)  # once: another thread may remove the file meanwhile
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(found.st_mode):
        raise FileExistsError(errno.EEXIST, "not a regular file", str(path))


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, for this user alone."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def read_fully(fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Fill the buffers from `offset` on; preadv into existing memory is the fastest way."""
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
    """Fill each buffer from its offset, with one preadv per buffer."""
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
    """Return whether the page cache holds that byte; True where the system cannot tell."""
    return not _CAN_ADVISE or _read_cached(fd, memoryview(bytearray(1)), offset)


def write_fully(fd: int, buffers: Sequence[memoryview]) -> None:
    pending = [buffer for buffer in buffers if len(buffer)]
    while pending:
        pending = _advance(pending, os.writev(fd, pending))


def write_file(path: Path, buffers: Sequence[memoryview], *, sync: bool) -> None:
    """Write a new file, durable if `sync`; on failure no file is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
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
    """Write to `temporary`, then rename it to `target` (`root/??/??/<name>`)."""
    write_file(temporary, buffers, sync=sync)
    try:
        new_directory = not target.parent.is_dir()
        make_directory(target.parent)
        require_free_name(target)
        os.replace(temporary, target)
        if sync:
            sync_directory(target.parent)
            if new_directory:
                sync_directory(target.parent.parent)
                sync_directory(root)
    except BaseException:
        temporary.unlink(missing_ok=True)
        remove_regular(target)  # otherwise a file would stay that the index does not count
        raise


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (fsync)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Lock a file; the lock lasts until the returned descriptor is closed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise
        # Something else has the name. Every process sees that, so all lock the directory instead.
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def lock_shared(path: Path, patience_s: float) -> tuple[int, bool]:
    give_up_at = time.monotonic() + patience_s
    while True:
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            try:
                return lock_file(path, kind), kind == fcntl.LOCK_EX
            except OSError:
                if kind == fcntl.LOCK_SH and time.monotonic() > give_up_at:
                    raise
        time.sleep(0.05)


def share(fd: int) -> None:
    """Let others that share a lock in, too."""
    fcntl.flock(fd, fcntl.LOCK_SH)


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
