"""Finds and loads the compiled C kernels that this CPU can run.

They are compiled when the package is installed where there is a C compiler, or by
`python -m service.worker.kernels.cpu.build`. Without them torch's slower operations are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

KernelT = TypeVar("KernelT")

FOLDER = Path(__file__).parent


def load_kernel(name: str, make: Callable[[ctypes.CDLL], KernelT]) -> KernelT | None:
    """The kernel that `make` builds from the newest usable library of `<name>.c`.

    A C function must get a new name when its arguments or their meaning change. A library that was
    compiled from an older source then lacks the name, and is skipped here instead of being called
    with wrong arguments.

    Returns:
        None where no library is compiled, or none runs on this CPU.
    """
    for path in sorted(FOLDER.glob(f"_{name}.*so"), key=_modified_at, reverse=True):
        try:
            library = open_library(path, name)
            if library is not None:
                return make(library)
        except (OSError, AttributeError):
            continue  # compiled for another machine, or from an older source
    return None


def _modified_at(path: Path) -> float:
    return path.stat().st_mtime


def missing_kernels() -> list[str]:
    """Names of the kernels that are not compiled, or not for this CPU."""
    names = [source.stem for source in sorted((FOLDER / "src").glob("*.c"))]
    return [name for name in names if load_kernel(name, lambda library: library) is None]


def open_library(path: Path, name: str) -> ctypes.CDLL | None:
    """The library at `path`, or None if this CPU lacks instructions that it needs.

    Raises:
        OSError: the file is not a library for this machine.
        AttributeError: the library is not that of the kernel `name`.
    """
    library = ctypes.CDLL(str(path))
    return library if getattr(library, f"{name}_supported")() else None
