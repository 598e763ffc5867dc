"""Compiles the C kernels next to their sources.

    python -m kvstitch.service.worker.kernels.cpu.build

Installing the package compiles them too (pyproject.toml, `ext-modules`), into a file of the same
name. This module is for a checkout whose sources have changed (`--if-changed`: does nothing
otherwise, nor without a compiler).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = sorted((FOLDER / "src").glob("*.c"))
HEADERS = sorted((FOLDER / "src").glob("*.h"))
MODULE = FOLDER / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
# The OpenMP library itself is not linked: torch has already loaded one, and two of them would each
# start as many threads as there are cores.
COMPILE = ("-O3", "-fopenmp", "-fPIC")


def compiler() -> str | None:
    """Path of the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def is_current() -> bool:
    """Return whether the module is there and no source has changed since."""
    newest = max(path.stat().st_mtime for path in SOURCES + HEADERS)
    return MODULE.exists() and MODULE.stat().st_mtime >= newest


def build() -> Path:
    """Compile the module, and put it into its place when it is whole."""
    tool = compiler()
    if tool is None:
        raise RuntimeError("there is no C compiler: install gcc")
    objects = []
    try:
        for source in SOURCES:
            objects.append(MODULE.with_name(f"{source.stem}.{os.getpid()}.o"))
            include = f"-I{sysconfig.get_paths()['include']}"
            _run([tool, *COMPILE, include, "-c", str(source), "-o", str(objects[-1])])
        linked = MODULE.with_name(f"{os.getpid()}.so")
        _run([tool, "-shared", *map(str, objects), "-o", str(linked)])
        linked.replace(MODULE)
    finally:
        for each in objects:
            each.unlink(missing_ok=True)
    return MODULE


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")


if __name__ == "__main__":
    try:
        if "--if-changed" not in sys.argv or (compiler() and not is_current()):
            print(build())
    except RuntimeError as error:
        sys.exit(str(error))
