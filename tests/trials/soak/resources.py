"""What a process holds: resident memory and descriptors, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """Resident memory in bytes, open descriptors."""

    rss: int
    descriptors: int

    @classmethod
    def by(cls, pid: int) -> Held:
        status = Path(f"/proc/{pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return cls(int(kib) * 1024, len(os.listdir(f"/proc/{pid}/fd")))
