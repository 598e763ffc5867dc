"""The wheel: it holds what serves, its client, their data, and all kernels written in C."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePath
from typing import Any

import pytest

from kvstitch.service.worker.kernels.cpu import build
from tests.ops import tools

FOLDER = Path("kvstitch/service/worker/kernels/cpu")
SETUPTOOLS: dict[str, Any] = tomllib.loads((tools.REPOSITORY / "pyproject.toml").read_text())[
    "tool"
]["setuptools"]
SERVED = ("encryption", "service", "kvstore", "retriever", "kvstitch")
# Setuptools' own list of what it would copy into a wheel, without building anything.
LIST_FILES = """
import json, sys
from setuptools import Distribution
distribution = Distribution({"script_name": "setup.py"})
distribution.parse_config_files(["pyproject.toml"])
distribution.get_command_obj("egg_info").egg_base = sys.argv[1]
build = distribution.get_command_obj("build_py")
build.build_lib = "wheel"
build.ensure_finalized()
json.dump(build.get_outputs(include_bytecode=False), open(sys.argv[2], "w"))
"""


def test_one_module_is_built_from_all_sources_anew_when_a_header_changes() -> None:
    """As a checkout builds it; without a compiler the package installs all the same."""
    (module,) = SETUPTOOLS["ext-modules"]
    assert module["name"] == f"{FOLDER}/_native".replace("/", ".")
    assert sorted(module["sources"]) == [str(FOLDER / "src" / path.name) for path in build.SOURCES]
    assert sorted(module["depends"]) == [str(FOLDER / "src" / path.name) for path in build.HEADERS]
    assert {"-fPIC", *module["extra-compile-args"]} == set(build.COMPILE)
    assert module["optional"] is True


def test_sources_and_headers_are_in_the_package() -> None:
    assert {"src/*.c", "src/*.h"} <= set(
        SETUPTOOLS["package-data"]["kvstitch.service.worker.kernels.cpu"]
    )


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[PurePath]:
    """Paths inside the wheel, all but the compiled kernels and the metadata."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = folder / "files.json"
    command = [sys.executable, "-c", LIST_FILES, str(folder), str(listed)]
    done = subprocess.run(command, cwd=tools.REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {PurePath(name).relative_to("wheel") for name in json.loads(listed.read_text())}


def test_the_wheel_has_what_serves_and_nothing_else(wheel_files: set[PurePath]) -> None:
    assert {path.parts[0] for path in wheel_files} == {"kvstitch"}
    expected = {
        PurePath("kvstitch")
        / path.relative_to(tools.REPOSITORY).relative_to(
            "kvstitch" if package == "kvstitch" else ""
        )
        for package in SERVED
        for path in (tools.REPOSITORY / package).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    assert wheel_files == {PurePath(path) for path in expected}


def test_what_serves_imports_nothing_that_stays_in_the_checkout() -> None:
    outside = r"(?m)^\s*(?:from|import) (?:demo|benchmarks|loadtest|tests|scripts)\b"
    for package in SERVED:
        for path in (tools.REPOSITORY / package).rglob("*.py"):
            assert not re.search(outside, path.read_text(encoding="utf-8")), path


def test_licence_and_notice_go_along() -> None:
    project = tomllib.loads((tools.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    for name in project["license-files"]:
        assert (tools.REPOSITORY / name).is_file()
