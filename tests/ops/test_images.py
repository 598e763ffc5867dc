"""The Dockerfile: clean by hadolint, and what it copies and runs is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

from tests.ops import tools

DOCKERFILE = tools.REPOSITORY / "docker" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) with continued lines joined and comments left out."""
    lines = [x for x in DOCKERFILE.read_text().splitlines() if not x.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (x.partition(" ") for x in joined.split("\n"))
    ]


def test_hadolint_finds_nothing(ops_tools: None) -> None:
    command: list[str | Path] = [tools.TOOLS / "hadolint", "--config", ".hadolint.yaml", DOCKERFILE]
    done = subprocess.run(command, cwd=tools.REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignore = (tools.REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = set()
    for word, rest in instructions():
        if word == "COPY" and "--from=" not in rest:
            copied |= set(shlex.split(rest)[:-1])
    assert copied == allowed
    assert all((tools.REPOSITORY / name).exists() for name in copied)


def test_the_package_built_is_the_package_that_runs() -> None:
    """All packages of the wheel that serving needs are copied, and the versions are the tested."""
    project = tomllib.loads((tools.REPOSITORY / "pyproject.toml").read_text())
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {name.rstrip(".*") for name in included}
    copied = {rest.split()[0] for word, rest in instructions() if word == "COPY"}
    assert packages <= copied
    constraints = (tools.REPOSITORY / "constraints.txt").read_text()
    assert re.search(r"(?m)^torch==", constraints)


def test_final_images_run_as_nobody_with_an_init_process() -> None:
    stages = re.split(r"(?m)^FROM ", DOCKERFILE.read_text())[1:]
    by_name = {stage.split("\n")[0].split(" AS ")[1]: stage for stage in stages}
    assert 'ENTRYPOINT ["tini", "--"]' in by_name["base"]
    for name in ("service", "load"):
        assert by_name[name].startswith("base AS")
        assert "USER 10001:10001" in by_name[name]
        assert "HEALTHCHECK" in by_name[name]
        assert "pip install" not in by_name[name]
