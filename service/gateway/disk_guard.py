"""Recognises that the disk of the data folder is full, and says so until it can be written again.

A full disk passes by itself as soon as somebody makes room. So nothing fails of it for good:
uploads and deletions are refused with 507, accepted jobs wait, and what is stored can be read.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import DiskFull

_FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT)
# SQLite says one of these where a file beside the database cannot grow.
_PERHAPS_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
LITTLE_BYTES = 1 << 20  # less than this free: it is the disk
PROBE_BYTES = 1 << 20
PROBE_PAUSE_S = 1.0


class DiskGuard:
    """Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reason: str | None = None
        self._probed_at = float("-inf")

    def recognise(self, error: BaseException) -> DiskFull | None:
        """The error to raise instead of one that a full disk has caused; None: it has not."""
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
        """Within the block, errors that a full disk causes become DiskFull."""
        try:
            yield
        except Exception as error:
            full = self.recognise(error)
            if full is None or full is error:
                raise
            raise full from error

    def reason(self) -> str | None:
        """Why nothing can be stored, None if it can. Blocks for a short write if it was full."""
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
        if isinstance(error, OSError):
            return error.errno in _FULL_ERRNO
        if isinstance(error, sqlite3.Error):
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
            return primary == sqlite3.SQLITE_FULL or (
                primary in _PERHAPS_FULL and shutil.disk_usage(self._folder).free < LITTLE_BYTES
            )
        # FAISS and others raise it as text.
        return isinstance(error, RuntimeError) and os.strerror(errno.ENOSPC) in str(error)

    def _describe(self) -> str:
        usage = shutil.disk_usage(self._folder)
        return (
            f"the disk of {self._folder} is full ({usage.free / 2**20:.1f} of "
            f"{usage.total / 2**20:.0f} MiB free): delete files there, or give it more room; "
            "what is stored can still be read, and jobs go on as soon as there is room"
        )
