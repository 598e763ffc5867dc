"""Builds the kernels written in C beside their sources: `python -m
service.worker.kernels.cpu.build`.

Installing the package does it too (pyproject.toml, `ext-modules`); this is for a checkout that is
run without being installed, and for tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = sorted((Path(__file__).parent / "src").glob("*.c"))
# OpenMP is compiled for and not linked: torch has brought its own, and two of them would each
# start as many threads as there are cores.
COMPILE = ("-O3", "-fopenmp", "-fPIC")


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path = Path(__file__).parent) -> list[Path]:
    """The libraries, in `folder`. Raises RuntimeError without a compiler that can build them."""
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
