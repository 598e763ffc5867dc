"""A number among the processes that share an SSD tier's folder, free again when they end."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path

from service.worker.server import leases

log = logging.getLogger("kvstitch.worker")

FOLDER = ".seats"  # the SSD tier leaves hidden folders alone
SEATS = 64


def empty_if_over(kv_dir: Path) -> None:
    """Remove what an earlier process left, if it may hold what was deleted since it was last heard.

    Where another process has a seat, it does that itself, in time.

    Raises:
        OSError: something of it cannot be removed.
    """
    if not kv_dir.is_dir() or not leases.is_over(kv_dir) or _is_used(kv_dir / FOLDER):
        return
    log.warning("%s is emptied: it is not known what was deleted meanwhile", kv_dir)
    for path in kv_dir.iterdir():
        if path.name == FOLDER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def take(kv_dir: Path) -> int:
    """The lowest free number, which is this process's until it ends, however it does.

    Raises:
        OSError: the folder cannot be used, or has no free number.
    """
    folder = kv_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(SEATS):
        if _lock(folder / str(number)) is not None:
            return number  # the descriptor stays open
    raise OSError(f"{SEATS} workers use {kv_dir} already: give this one another folder")


def _lock(seat: Path) -> int | None:
    """A descriptor that holds a seat; None if another process has it."""
    descriptor = os.open(seat, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_used(folder: Path) -> bool:
    for seat in folder.iterdir() if folder.is_dir() else ():
        if (descriptor := _lock(seat)) is None:
            return True
        os.close(descriptor)
    return False
