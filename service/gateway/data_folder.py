"""The data folder: used by one gateway at a time, and read by nobody else.

It holds the text of all documents, of all tenants.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from pathlib import Path
from typing import IO

from service.errors import InvalidSetting

logger = logging.getLogger(__name__)
FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077  # of both processes


def lock_folder(folder: Path) -> IO[str]:
    """Lock a data folder for as long as the returned file is open.

    Two gateways on one folder would undo each other's work.

    Raises:
        InvalidSetting: The folder cannot be used, or another gateway uses it.
    """
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


def make_private(folder: Path, *, beside: Path) -> None:
    """Take the rights of other users to a data folder that an earlier release has made.

    Args:
        folder: The data folder.
        beside: A folder in it that is left alone.
    """
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
