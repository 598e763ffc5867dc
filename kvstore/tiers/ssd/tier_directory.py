"""The directory of an SSD tier: who owns it, what lies in it at start, where files are begun."""

import itertools
import logging
import os
from contextlib import suppress
from pathlib import Path

from kvstitch.kvstore.errors import TierError, TierUnavailable
from kvstitch.kvstore.tiers.ssd.directory_scan import (
    LOCK,
    TEMPORARY,
    DirectoryScan,
    ScanReport,
    StoredFile,
)
from kvstitch.kvstore.tiers.ssd.file_io import (
    DIRECTORY_MODE,
    lock_file,
    lock_shared,
    make_directory,
    share,
)

_log = logging.getLogger(__name__)

# How long a process waits for another to finish its start in a directory that they share.
START_PATIENCE_S = 60.0


class TierDirectory:
    """Locks and scans the directory, and names the files that are being written."""

    def __init__(self, root: Path, member: int | None) -> None:
        self._root = root
        self.scan = ScanReport()
        self._member = member
        self._lock_fd: int | None = None
        self._temporary_root = root / TEMPORARY
        self._temporary = itertools.count()

    @property
    def locked(self) -> bool:
        return self._lock_fd is not None

    def open(self) -> list[tuple[str, StoredFile]] | None:
        """Make the directory and lock it, and remove what a crash left and what cannot be read."""
        alone = self._lock()
        scan, found = DirectoryScan(self._root), None
        self.scan = scan.report
        try:
            self._make_temporary_directory()
            if alone:
                found = scan.run()
            else:
                scan.sweep_only(self._temporary_root)
        except BaseException:
            self.close()
            raise
        self._log_scan()
        return found

    def share(self) -> None:
        """Let other members in, now that the directory is in order."""
        if self._member is not None and self._lock_fd is not None:
            share(self._lock_fd)

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def temporary_path(self) -> Path:
        """Return the path of a file that does not exist yet."""
        while True:
            path = self._temporary_root / str(next(self._temporary))
            if not os.path.lexists(path):
                return path

    def _lock(self) -> bool:
        """Lock the directory; return whether no other process has it."""
        if self._root.exists() and not self._root.is_dir():
            raise TierError(f"{self._root} is not a directory: give another, or remove it")
        make_directory(self._root)
        with suppress(OSError):  # of another user, who let us in
            self._root.chmod(DIRECTORY_MODE)
        alone = True
        try:
            if self._member is None:
                self._lock_fd = lock_file(self._root / LOCK)
            else:
                self._lock_fd, alone = lock_shared(self._root / LOCK, START_PATIENCE_S)
        except OSError as error:
            raise TierUnavailable(
                f"{self._root} is in use: give each process its own directory"
            ) from error
        return alone

    def _make_temporary_directory(self) -> None:
        """Make the directory for files being written, under another name if this one is taken."""
        names = (TEMPORARY, *(f"{TEMPORARY}-{n}" for n in range(1, 10)))
        for name in names if self._member is None else (f"{TEMPORARY}-w{self._member}",):
            self._temporary_root = self._root / name
            if self._temporary_root.is_symlink():
                continue
            with suppress(FileExistsError):
                self._temporary_root.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                return
        raise TierUnavailable(f"{self._root} has no room for a directory {TEMPORARY}: clear it up")

    def _log_scan(self) -> None:
        found = self.scan
        for count, what in (
            (found.removed_unreadable, "files removed that were no whole chunks"),
            (
                found.removed_refused,
                "chunks removed that another version of the format or codec wrote",
            ),
            (len(found.foreign), "things skipped that are not the store's files"),
        ):
            if count:
                _log.warning("%s: %d %s", self._root, count, what)
        if found.foreign:
            _log.warning("the first of them is %s", found.foreign[0])
