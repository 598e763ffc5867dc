"""Finds the kernels that are written in C, where they are built and this CPU can run them.

They are built when the package is installed where there is a C compiler, or by
`python -m service.worker.kernels.cpu.build`. Without them everything goes on with torch, slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Kernel = TypeVar("Kernel")

FOLDER = Path(__file__).parent


def load_kernel(name: str, make: Callable[[ctypes.CDLL], Kernel]) -> Kernel | None:
    """What `make` makes of the library of `<name>.c`, or None; of several the one built last. A
    function in C gets another name when its arguments or what it does with them change: what was
    built from an older source lacks it, and is left alone."""
    for path in sorted(FOLDER.glob(f"_{name}.*so"), key=_built_at, reverse=True):
        try:
            library = open_library(path, name)
            if library is not None:
                return make(library)
        except (OSError, AttributeError):
            continue  # built for another machine, or from an older source
    return None


def _built_at(path: Path) -> float:
    return path.stat().st_mtime


def missing_kernels() -> list[str]:
    """Kernels that are not built, or not for this CPU: torch's operations are used instead."""
    names = [source.stem for source in sorted((FOLDER / "src").glob("*.c"))]
    return [name for name in names if load_kernel(name, lambda library: library) is None]


def open_library(path: Path, name: str) -> ctypes.CDLL | None:
    """The library at `path`, or None if this CPU lacks what it needs. Raises OSError and
    AttributeError for a file that is not this kernel."""
    library = ctypes.CDLL(str(path))
    return library if getattr(library, f"{name}_supported")() else None
