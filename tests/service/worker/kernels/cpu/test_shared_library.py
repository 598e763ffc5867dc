"""A library that was built from an older source is passed over, whatever else lies beside it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from service.worker.kernels.cpu import (
    accumulated_attention,
    build,
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    prefill_attention,
    ragged_attention,
    rms_norm,
    rotation,
    shared_library,
)

KERNELS: dict[str, Callable[[ctypes.CDLL], object]] = {
    "accumulated_attention": accumulated_attention.Kernel,
    "linear_few_rows": linear_few_rows.Kernel,
    "linear_many_rows_bf16": linear_many_rows_bf16.Kernel,
    "linear_many_rows_fp32": linear_many_rows_fp32.Kernel,
    "prefill_attention": prefill_attention.Kernel,
    "ragged_attention": ragged_attention.Kernel,
    "rms_norm": rms_norm.Kernel,
    "rotation": rotation.Kernel,
}
# How an installation and a build in a checkout name them.
INSTALLED, CHECKOUT = "_thing.cpython-311-x86_64-linux-gnu.so", "_thing.so"
OLD = "int thing_supported(void) { return 1; } int thing(int x) { return x; }"
NEW = "int thing_supported(void) { return 1; } int thing_twice(int x) { return 2 * x; }"
NOT_HERE = "int thing_supported(void) { return 0; } int thing_twice(int x) { return 0; }"


class Thing:
    def __init__(self, built: ctypes.CDLL) -> None:
        self.twice = built.thing_twice


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_library, "FOLDER", tmp_path)
    return tmp_path


def compiled(source: str, path: Path) -> None:
    tool = build.compiler()
    if tool is None:
        pytest.skip("there is no C compiler")
    command = [tool, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


def test_nothing_is_built(folder: Path) -> None:
    assert shared_library.load_kernel("thing", Thing) is None


def test_an_older_one_is_passed_over_for_the_one_that_fits(folder: Path) -> None:
    compiled(OLD, folder / INSTALLED)
    assert shared_library.load_kernel("thing", Thing) is None
    compiled(NEW, folder / CHECKOUT)
    found = shared_library.load_kernel("thing", Thing)
    assert found is not None and found.twice(21) == 42


@pytest.mark.parametrize("newer", [INSTALLED, CHECKOUT])
def test_of_two_that_fit_the_one_built_last_is_taken(folder: Path, newer: str) -> None:
    for name in (INSTALLED, CHECKOUT):
        compiled(NEW.replace("2 * x", "3 * x" if name == newer else "2 * x"), folder / name)
        built_at = 2000 if name == newer else 1000
        os.utime(folder / name, (built_at, built_at))
    found = shared_library.load_kernel("thing", Thing)
    assert found is not None and found.twice(21) == 63


def test_so_is_one_of_another_machine_or_cpu(folder: Path) -> None:
    (folder / INSTALLED).write_bytes(b"not a library")
    assert shared_library.load_kernel("thing", Thing) is None
    compiled(NOT_HERE, folder / CHECKOUT)
    assert shared_library.load_kernel("thing", Thing) is None


def test_a_kernel_whose_name_begins_alike_is_another(folder: Path) -> None:
    compiled(NEW, folder / "_thing_else.so")
    assert shared_library.load_kernel("thing", Thing) is None


def test_those_that_are_missing_are_named(folder: Path) -> None:
    """One that is built, one that is not, one for another CPU."""
    (folder / "src").mkdir()
    for name in ("thing", "other", "third"):
        (folder / "src" / f"{name}.c").touch()
    compiled(NEW, folder / CHECKOUT)
    compiled(NOT_HERE.replace("thing_supported", "third_supported"), folder / "_third.so")
    assert shared_library.missing_kernels() == ["other", "third"]


def test_every_kernel_is_known_here() -> None:
    assert list(KERNELS) == [source.stem for source in build.SOURCES]


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_looks_for_its_functions_at_once(name: str, folder: Path) -> None:
    """Not at its first use, when it is too late to go on without it."""
    compiled(f"int {name}_supported(void) {{ return 1; }}", folder / f"_{name}.so")
    assert shared_library.load_kernel(name, KERNELS[name]) is None
