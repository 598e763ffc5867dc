"""Describes the machine of a run, without hostname and paths."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "httpx", "fastapi", "uvicorn", "numpy")
# Result files are excluded, because they are written while other results are still measured.
CHANGES = (
    *("status", "--porcelain", "--untracked-files=no", "--"),
    *(":(top)", ":(top,exclude)benchmarks/results"),
)
PRIVATE = ("SECRET", "KEY", "URL", "DIR")


def describe() -> dict[str, Any]:
    """A JSON-ready record. The load average of one minute tells if others used the machine."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git(*CHANGES)),
    }


def service_environment() -> dict[str, str]:
    """The KVSTITCH_* variables that a service started from here gets, without private ones."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("KVSTITCH_") and not any(part in name for part in PRIVATE)
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
