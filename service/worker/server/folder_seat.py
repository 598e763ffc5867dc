"""A number among the processes that share an SSD tier's folder, free again when they end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

FOLDER = ".seats"  # the SSD tier leaves hidden folders alone
SEATS = 64


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
