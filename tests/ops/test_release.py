"""Releases: what is locked and under which licence, and that two builds are the same bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.release import artifacts, licences, lock, provenance
from tests.ops.tools import REPOSITORY

LOCK = (REPOSITORY / lock.FILE).read_text(encoding="utf-8")
PINNED = lock.pinned(LOCK)
CONSTRAINTS = {
    canonicalize_name(name): pinned
    for name, pinned in re.findall(
        r"(?m)^([A-Za-z0-9._-]+)==(\S+)", (REPOSITORY / "constraints.txt").read_text()
    )
}
# torch brings it, and what is tested has what pip found when its environment was made.
NOT_CONSTRAINED = {"setuptools"}


def test_everything_that_serving_requires_is_locked_by_hash() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = lock.extras_of_the_image(REPOSITORY)
    assert {"mcp", "oidc", "otel", "postgresql", "s3"} <= {*named}
    extras = (project["optional-dependencies"][extra] for extra in named)
    for text in (*project["dependencies"], *(text for extra in extras for text in extra)):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert requirement.specifier.contains(PINNED[name]), text
    assert all(count > 0 for count in lock.hashes(LOCK).values())
    assert "torch" not in PINNED and not any(name.startswith("nvidia-") for name in PINNED)


def test_what_is_locked_is_what_was_tested() -> None:
    assert PINNED.keys() - CONSTRAINTS.keys() <= NOT_CONSTRAINED
    differ = {
        name: pinned
        for name, pinned in PINNED.items()
        if CONSTRAINTS.get(canonicalize_name(name), pinned) != pinned
    }
    assert differ == {}, "python -m scripts.release lock"


def test_all_licences_are_listed_and_allowed() -> None:
    listed = licences.listed(REPOSITORY)
    assert listed.keys() == {"torch", *PINNED}
    refused = {name: text for name, text in listed.items() if licences.refused(text)}
    assert refused == {}
    same = {name for name in listed if _installed(name) == PINNED.get(name)}
    found = {name: licences.expression(name) for name in same}
    assert found == {name: listed[name] for name in same}, "python -m scripts.release lock"


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ("MIT", False),
        ("MIT AND GPL-3.0-only", True),
        ("GPL-2.0-only OR MIT", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("AGPL-3.0-only", True),
        ("", True),
        ("BSD", True),
    ],
)
def test_what_a_licence_may_be(expression: str, refused: bool) -> None:
    assert licences.refused(expression) is refused


def test_an_archive_forgets_when_and_by_whom_it_was_made(tmp_path: Path) -> None:
    made = []
    for number, names in enumerate(("ab", "ba")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
            os.utime(folder / name, (number, number))
            (folder / name).chmod(0o600 if number else 0o664)
        archive = folder / "x.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for name in names:
                tar.add(folder / name, f"x/{name}")
        artifacts.normalise(archive, 1000)
        made.append(archive)
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
        assert [(m.name, m.mtime, m.mode, m.uname) for m in members] == [
            ("x/a", 1000, 0o644, ""),
            ("x/b", 1000, 0o644, ""),
        ]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_the_wheel_for_all_machines_says_that_it_has_no_kernels(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    artifacts.without_kernels(tmp_path)
    setuptools = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["setuptools"]
    before = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "ext-modules" not in setuptools and setuptools == {
        name: value for name, value in before.items() if name != "ext-modules"
    }
    assert "no compiled kernels" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.network
def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """Clones in two folders, one after the other, each with other rights for new files."""
    index = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "setuptools==80.9.0"]
    if subprocess.run(index, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("no package index in reach")
    sums = []
    commit = artifacts.resolved(REPOSITORY, "HEAD")  # others may commit meanwhile
    for name, umask in (("a", 0o022), ("another folder", 0o077)):
        clone, out = tmp_path / name / "kvstitch", tmp_path / f"out-{name}"
        git = ["git", "clone", "-q", str(REPOSITORY), str(clone)]
        subprocess.run(git, check=True, capture_output=True)
        (clone / "untracked.py").write_text("not of the commit")
        done = subprocess.run(
            [sys.executable, "-m", "scripts.release", "--out", str(out), "--commit", commit],
            cwd=clone, umask=umask, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(clone)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sums.append((out / provenance.SUMS).read_text())
    assert sums[0] == sums[1]
    _check(out)


def _check(out: Path) -> None:
    """The files are whole, name no folder of the build, and describe one another."""
    verified = subprocess.run(["sha256sum", "-c", provenance.SUMS], cwd=out, capture_output=True)
    assert verified.returncode == 0
    names = {path.name for path in out.iterdir()}
    statement: dict[str, Any] = json.loads(next(out.glob("*.provenance.json")).read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    made = {name for name in names if not name.endswith(".provenance.json")} - {provenance.SUMS}
    assert subjects == {name: provenance.sha256(out / name) for name in made}
    plugins = {path.parent.name for path in REPOSITORY.glob("plugins/*/pyproject.toml")}
    assert {path.name.split("-")[0] for path in out.glob("kvstitch_*.whl")} == {
        f"kvstitch_{name}" for name in plugins
    }
    pure, compiled = sorted(out.glob("kvstitch-*.whl"), key=lambda path: "-any" not in path.name)
    for wheel, kernels in ((pure, 0), (compiled, 1)):
        with zipfile.ZipFile(wheel) as archive:
            modules = [name for name in archive.namelist() if name.endswith(".so")]
            assert len(modules) == kernels and "untracked.py" not in archive.namelist()
            for module in modules:
                content = archive.read(module)
                assert b"kvstitch-release-" not in content and b"RPATH" not in content
    bill = json.loads(next(out.glob("*.cdx.json")).read_text())
    assert {each["name"]: each["version"] for each in bill["components"]}.keys() == {
        "torch", *PINNED
    }  # fmt: skip
    assert all(each["licenses"] for each in bill["components"])


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except ModuleNotFoundError:
        return None
