"""A data folder for one service of a test, and what may become of a folder."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A file system that somebody has mounted anew."""
    for command in (["mount", "--bind", str(folder), str(folder)],
                    ["mount", "-o", "remount,bind,ro", str(folder)]):  # fmt: skip
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
