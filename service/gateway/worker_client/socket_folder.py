"""The folder of the sockets to the worker: /tmp/kvstitch-*, locked for as long as it is used.

A gateway that is killed cannot remove its folder. The next one that starts does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

PREFIX = "kvstitch-"
YOUNG_S = 60.0  # a folder may not be locked yet


def make() -> tuple[Path, int]:
    """Make a folder, after removing those that nobody uses any more.

    Returns:
        The folder, of mode 0700, and the descriptor that locks it until it is closed.
    """
    sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def sweep(parent: Path) -> None:
    """Remove folders of this user that no gateway has locked and no process listens in."""
    try:
        sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    except OSError:
        sockets = ""
    for folder in parent.glob(f"{PREFIX}*"):
        if f"{folder}/" not in sockets:  # releases before the lock
            _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    try:
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not ours or time.time() - status.st_mtime < YOUNG_S:
            return
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # it is gone
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if all(stat.S_ISSOCK(entry.lstat().st_mode) for entry in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # it is used
    finally:
        os.close(lock)
