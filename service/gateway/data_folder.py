"""The data folder: used by one gateway at a time, read by nobody else, and its disk may be full.

It holds the text of all documents, of all tenants. A full disk passes by itself as soon as somebody
makes room. So nothing fails of it for good: uploads and deletions are refused with 507, accepted
jobs wait, and what is stored can be read.
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvstitch.service.errors import DatabaseUnavailable, DiskFull, InvalidSetting, KvstitchError

logger = logging.getLogger(__name__)
FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077  # of both processes


def lock_folder(folder: Path) -> IO[str]:
    """Lock a data folder for as long as the returned file is open."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise InvalidSetting(f"data_dir {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidSetting(
            f"another kvstitch serves from {folder}: stop it, or give another --data-dir"
        ) from None
    with contextlib.suppress(OSError):  # no room; the lock holds without it
        file.truncate(0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file


def own_secret(folder: Path) -> str:
    """Return the content of `tenants.secret` in hex, made if it is not there, for tenants' keys
    where KVSTITCH_TENANT_SECRET is not set.

    If it is lost, no stored chunk of a named tenant can be found any more.
    """
    path = folder / "tenants.secret"
    if not path.exists():
        write_whole(path, secrets.token_hex(32))
    return path.read_text(encoding="ascii").strip()


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it, because a crash must not leave half of it."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def make_private(folder: Path, *, beside: Path) -> None:
    """Take the rights of other users to a data folder that an earlier release has made."""
    try:
        _restrict(folder, FOLDER_MODE)
        for path, names, files in os.walk(folder):
            names[:] = [name for name in names if Path(path, name) != beside]
            for name in names:
                _restrict(Path(path, name), FOLDER_MODE)
            for name in files:
                _restrict(Path(path, name), FILE_MODE)
    except OSError as error:  # it belongs to another user, as a mounted volume may
        logger.warning("other users may be able to read %s: %s", folder, error)


def _restrict(path: Path, mode: int) -> None:
    status = path.lstat()
    regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if regular and status.st_mode & UMASK:
        path.chmod(mode)


_FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last where a limit of size is set
HELD_RETRY_S = 5.0
# The disk, or a folder of it, is not this process's to write now.
_HELD_ERRNO = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)


def not_usable(error: BaseException) -> KvstitchError | None:
    """Return what to tell clients of an error of the system that passes, by itself or once somebody
    acts; None if it is a fault of ours."""
    code = _errno_of(error)
    if code is None or code not in (*_FULL_ERRNO, *_HELD_ERRNO):
        return None
    kind: type[KvstitchError] = DiskFull if code in _FULL_ERRNO else DatabaseUnavailable
    # Which file it is, is for the log.
    return kind(
        f"a store cannot be written now ({os.strerror(code)}): try again later",
        retry_after_s=HELD_RETRY_S,
    )


def _errno_of(error: BaseException) -> int | None:
    """Return the number of an error of the system, which FAISS and others raise as text."""
    if isinstance(error, OSError):
        return error.errno
    if not isinstance(error, RuntimeError):
        return None
    return next((n for n in (*_FULL_ERRNO, *_HELD_ERRNO) if os.strerror(n) in str(error)), None)


# SQLite says one of these where a file beside the database cannot grow.
_PERHAPS_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
LITTLE_BYTES = 1 << 20  # less than this free: it is the disk
PROBE_BYTES = 1 << 20
PROBE_PAUSE_S = 1.0


class DiskGuard:
    """Recognises a full disk, and notices when there is room again. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reason: str | None = None
        self._probed_at = float("-inf")

    def recognise(self, error: BaseException) -> DiskFull | None:
        """Return the error to raise instead of one that a full disk caused, None if it did not."""
        if isinstance(error, DiskFull):
            return error
        chain: BaseException | None = error
        while chain is not None:
            if self._is_full(chain):
                self._reason = self._describe()
                return DiskFull(self._reason)
            chain = chain.__cause__ or chain.__context__
        return None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors that a full disk causes within the block into DiskFull."""
        try:
            yield
        except Exception as error:
            full = self.recognise(error)
            if full is None or full is error:
                raise
            raise full from error

    def reason(self) -> str | None:
        """Return why nothing can be stored, None if it can."""
        now = time.monotonic()
        if self._reason is not None and now - self._probed_at >= PROBE_PAUSE_S:
            self._probed_at = now
            try:
                with tempfile.TemporaryFile(dir=self._folder) as file:
                    file.write(bytes(PROBE_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                self._reason = None
            except OSError:
                self._reason = self._describe()
        return self._reason

    def _is_full(self, error: BaseException) -> bool:
        if isinstance(error, sqlite3.Error):
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
            return primary == sqlite3.SQLITE_FULL or (
                primary in _PERHAPS_FULL and shutil.disk_usage(self._folder).free < LITTLE_BYTES
            )
        return _errno_of(error) in _FULL_ERRNO

    def _describe(self) -> str:
        usage = shutil.disk_usage(self._folder)
        return (
            f"the disk of {self._folder} is full ({usage.free / 2**20:.1f} of "
            f"{usage.total / 2**20:.0f} MiB free): delete files there, or give it more room; "
            "what is stored can still be read, and jobs go on as soon as there is room"
        )
