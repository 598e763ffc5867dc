"""What a result was measured on: machine, versions, commit. Part of every result file."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "transformers", "safetensors", "numpy", "redis", "faiss-cpu", "pyzmq")

# Result files are ignored here, because they are written while others are still measured.
_CHANGES = (
    *("status", "--porcelain", "--untracked-files=no", "--"),
    *(":(top)", ":(top,exclude)benchmarks/results"),
)


def describe() -> dict[str, Any]:
    """A JSON-ready record, without the host's name and paths."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "packages": {name: v for name in _PACKAGES if (v := _version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git(*_CHANGES)),
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


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
