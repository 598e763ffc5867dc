"""The file system under the data folder: a small tmpfs that can be filled, where root runs this.

Elsewhere it is an ordinary folder, and the disk is never full.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Self

MIB = 2**20


class Volume:
    """A folder for the data while the block lasts: `fill` it, `release` it."""

    def __init__(self, folder: Path, size_mib: int = 256) -> None:
        self.folder = folder
        self._size_mib = size_mib
        self.small = False
        self._ballast = folder / "ballast"

    @property
    def can_be_filled(self) -> bool:
        return os.path.ismount(self.folder)

    def __enter__(self) -> Self:
        """Mount the tmpfs where that is allowed and a run that was killed has not left one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.can_be_filled and os.geteuid() == 0 and not any(self.folder.iterdir()):
            options = ["-t", "tmpfs", "-o", f"size={self._size_mib}m,mode=0700"]
            subprocess.run(["mount", *options, "chaos", str(self.folder)], capture_output=True)
        self.small = self.can_be_filled
        self.release()
        return self

    def __exit__(self, *error: object) -> None:
        if self.can_be_filled:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Leave no byte free; what others free meanwhile they can use."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while free := os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, min(free, MIB))
        finally:
            os.close(descriptor)

    def release(self) -> None:
        self._ballast.unlink(missing_ok=True)
