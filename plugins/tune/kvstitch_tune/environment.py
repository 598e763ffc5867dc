"""What a result was measured on: machine, versions, commit. Part of every result file."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "redis",
    "faiss-cpu",
    "pyzmq",
    "kvstitch",
)

# Result files are ignored here, because they are written while others are still measured.
_CHANGES = (
    *("status", "--porcelain", "--untracked-files=no", "--"),
    *(":(top)", ":(top,exclude)benchmarks/results"),
)


def describe() -> dict[str, Any]:
    """Return a JSON-ready record, without the host's name and paths."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "packages": {name: v for name in _PACKAGES if (v := _version(name))},
        **_commit(),
    }


def _cpu_name() -> str:
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


def _commit() -> dict[str, Any]:
    """Return the commit of a checkout; where the package is installed there is none."""
    if _git("rev-parse", "--show-toplevel") != str(_ROOT):
        return {"commit": None, "uncommitted": None}
    return {"commit": _git("rev-parse", "HEAD"), "uncommitted": bool(_git(*_CHANGES))}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
