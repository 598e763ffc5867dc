"""What a check finds; and whether installed packages are in the ranges of this release."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from service import __version__

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: What was checked.
        level: How it is.
        message: What was found.
        remedy: What to do; empty if it is ok.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "fail", message, remedy)


def check_packages() -> Iterator[Finding]:
    found = _required()
    if not found:
        yield fail("packages", "kvstitch's own requirements are not known",
                   "install it: pip install kvstitch")  # fmt: skip
        return
    wrong = [line for requirement in found if (line := _problem(requirement))]
    for line in wrong:
        yield fail("packages", line, "pip install -c constraints.txt kvstitch")
    if not wrong:
        python = ".".join(map(str, sys.version_info[:3]))
        yield ok(
            "packages",
            f"kvstitch {__version__}, Python {python}, {len(found)} packages in their ranges",
        )


def _required() -> list[Requirement]:
    """Requirements of this checkout, or else of the installed package; without extras."""
    project = Path(__file__).parents[3] / "pyproject.toml"
    if project.is_file():
        texts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        try:
            texts = metadata.requires("kvstitch") or []
        except metadata.PackageNotFoundError:
            texts = []
    found = [Requirement(text) for text in texts]
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


def _problem(requirement: Requirement) -> str:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed ({requirement.specifier} is needed)"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, {requirement.specifier} is needed"
