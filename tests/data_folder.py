"""A data folder for one service of a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def data_folder() -> Iterator[Path]:
    """In memory, where there is room: a database waits for every write, and a disk takes its time.

    Its path is short: the address of an ipc socket may have about 100 characters.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    path = Path(tempfile.mkdtemp(prefix="kv-", dir=memory if roomy else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)
