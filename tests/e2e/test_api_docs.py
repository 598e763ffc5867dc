"""docs/api.md tells the truth: every command is run, what it prints is compared."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.models import DEMO
from tests.e2e.service import Service

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"^```sh\n(curl .*?)```\n```(json|text)\n(.*?)```$", re.S | re.M)
PLACE = "localhost:8000"
ANYTHING = "…"


@dataclass(frozen=True)
class Shown:
    command: str
    kind: str
    output: str


def shown() -> list[Shown]:
    return [Shown(*found.groups()) for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real demo model, as `kvstitch serve` serves it, without documents."""
    with Service(DEMO, tmp_path_factory.mktemp("docs") / "data") as service:
        yield service


def test_every_command_prints_what_the_page_says(demo: Service) -> None:
    """In the order of the page: later commands ask about the documents of the first."""
    name = demo.http.get("/v1/models").json()["data"][0]["id"]
    for number, block in enumerate(shown()):
        command = block.command.replace(PLACE, f"127.0.0.1:{demo.port}")
        command = command.replace("kvstitch-demo", name)
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, (command, ran.stderr)
        expected = block.output.replace("kvstitch-demo", name)
        if block.kind == "json":
            assert_within(json.loads(expected), json.loads(ran.stdout), f"block {number}")
        else:
            pattern = re.escape(expected.strip())
            pattern = pattern.replace(f"\\\n{ANYTHING}\\\n", "\n(?:.*\n)?")  # lines, or none
            pattern = pattern.replace(ANYTHING, ".*?")
            answered = ran.stdout.replace("\r\n", "\n").strip()
            assert re.fullmatch(pattern, answered, re.S), (command, expected, answered)
        if number == 0:
            finished(demo)


def test_no_command_is_left_out() -> None:
    """Each `curl` at the beginning of a block has an output to compare with."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(shown()) == len(re.findall(r"^```sh\ncurl ", text, re.M)) >= 14


def assert_within(expected: Any, found: Any, where: str) -> None:
    """What the page shows is part of what was answered; lists may go on."""
    if expected == ANYTHING:
        return
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{where}: {key} is missing in {found}"
            assert_within(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list) and expected:
        assert len(found) >= len(expected), (where, found)
        for index, value in enumerate(expected):
            assert_within(value, found[index], f"{where}[{index}]")
    else:
        assert found == expected, f"{where}: {found!r}, the page says {expected!r}"


def finished(service: Service) -> None:
    def done() -> bool:
        jobs = service.http.get("/admin/jobs").json()["jobs"]
        return all(job["state"] == "succeeded" for job in jobs)

    service.until(done, "the documents are not ingested")
