"""What pyproject.toml says about the kernels written in C: an installed package has all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from service.worker.kernels.cpu import build
from tests.ops import tools

FOLDER = Path("service/worker/kernels/cpu")
SETUPTOOLS: dict[str, Any] = tomllib.loads((tools.REPOSITORY / "pyproject.toml").read_text())[
    "tool"
]["setuptools"]
MODULES: dict[str, dict[str, Any]] = {m["name"]: m for m in SETUPTOOLS["ext-modules"]}
SOURCES = sorted((tools.REPOSITORY / FOLDER / "src").glob("*.c"))


def included(source: Path) -> set[str]:
    """Headers beside it that a source includes, itself or through another."""
    found: set[str] = set()
    for name in re.findall(r'(?m)^\s*#\s*include\s+"([^"]+)"', source.read_text()):
        found |= {name} | included(source.with_name(name))
    return found


def test_what_is_included_is_found_through_other_headers(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "b.h"\n#include <stddef.h>\n')
    (tmp_path / "b.h").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text("int c;\n")
    assert included(tmp_path / "a.c") == {"b.h", "c.h"}


def test_every_source_has_its_module_and_every_module_a_source() -> None:
    expected = {f"{FOLDER}/_{source.stem}".replace("/", ".") for source in SOURCES}
    assert SOURCES and len(SETUPTOOLS["ext-modules"]) == len(MODULES)
    assert set(MODULES) == expected


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_module_is_built_from_its_source_anew_when_a_header_changes(source: Path) -> None:
    module = MODULES[f"service.worker.kernels.cpu._{source.stem}"]
    assert module["sources"] == [f"{FOLDER}/src/{source.name}"]
    assert sorted(module["depends"]) == sorted(f"{FOLDER}/src/{name}" for name in included(source))
    # As a checkout builds them; without a compiler the package installs all the same.
    assert {"-fPIC", *module["extra-compile-args"]} == set(build.COMPILE)
    assert module["optional"] is True


def test_sources_and_headers_are_in_the_package() -> None:
    assert {"src/*.c", "src/*.h"} <= set(SETUPTOOLS["package-data"]["service.worker.kernels.cpu"])
