"""Compiles the C kernels next to their sources: `python -m service.worker.kernels.cpu.build`.

Installing the package compiles them too (pyproject.toml, `ext-modules`). This module is for a
checkout that runs without being installed, and for tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = sorted((Path(__file__).parent / "src").glob("*.c"))
# The OpenMP library itself is not linked: torch has already loaded one, and two of them would each
# start as many threads as there are cores.
COMPILE = ("-O3", "-fopenmp", "-fPIC")


def compiler() -> str | None:
    """Path of the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path = Path(__file__).parent) -> list[Path]:
    """Compiles every kernel into `folder`.

    Returns:
        Paths of the libraries.

    Raises:
        RuntimeError: there is no C compiler, or it cannot compile a kernel.
    """
    tool = compiler()
    if tool is None:
        raise RuntimeError("there is no C compiler: install gcc")
    return [_build(tool, source, folder) for source in SOURCES]


def _build(tool: str, source: Path, folder: Path) -> Path:
    library, compiled = folder / f"_{source.stem}.so", folder / f"_{source.stem}.o"
    for command in (
        [tool, *COMPILE, "-c", str(source), "-o", str(compiled)],
        [tool, "-shared", str(compiled), "-o", str(library)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    compiled.unlink()
    return library


if __name__ == "__main__":
    try:
        print(*build(), sep="\n")
    except RuntimeError as error:
        sys.exit(str(error))
