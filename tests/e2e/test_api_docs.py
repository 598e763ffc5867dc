"""docs/api.md and docs/api-admin.md tell the truth: every command is run, and what it prints is
compared where the page says it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import DEMO
from tests.e2e.service import Service
from tests.service.gateway.documents.pdfs import make_pdf

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "api.md"
BLOCK = re.compile(r"^```sh\n(curl .*?)```\n```(json|text)\n(.*?)```$", re.S | re.M)
COMMAND = re.compile(r"^curl (?:.*\\\n)*.*$", re.M)
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
    data = tmp_path_factory.mktemp("docs") / "data"
    with Service(DEMO, data, **IN_PROCESS) as service:
        yield service


def test_every_command_prints_what_the_page_says(demo: Service) -> None:
    """In the order of the page: later commands ask about the documents of the first."""
    name = demo.http.get("/v1/models").json()["data"][0]["id"]
    for number, block in enumerate(shown()):
        command = block.command.replace(PLACE, f"127.0.0.1:{demo.port}")
        command = command.replace("kvstitch-demo", name)
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240)
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


def test_every_command_of_the_admin_page_is_served(demo: Service, tmp_path: Path) -> None:
    """In its order: the files sent first are listed, pinned and deleted by the later ones."""
    (tmp_path / "kettle.pdf").write_bytes(make_pdf(["A kettle boils water."]))
    (tmp_path / "toaster.html").write_text("<h1>Toaster</h1><p>It toasts bread.</p>")
    commands = COMMAND.findall((DOCS / "api-admin.md").read_text(encoding="utf-8"))
    assert len(commands) >= 13
    named = {"JOB_ID": "", "RECEIPT_ID": ""}
    for command in commands:
        line = command.replace(PLACE, f"127.0.0.1:{demo.port}")
        for name, value in named.items():
            line = line.replace(name, value)
        line = re.sub(r"^curl ", "curl --no-progress-meter -w '\\n%{http_code}' ", line)
        ran = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=240, cwd=tmp_path
        )
        body, _, status = ran.stdout.rpartition("\n")
        # A job may be over before it is cancelled: the page says 409.
        allowed = ("200", "202", "204", "409") if "-X DELETE" in line else ("200", "202")
        assert status in allowed, (command, ran.stdout, ran.stderr)
        found = json.loads(body) if body else {}
        if "precompute" in line:
            named["JOB_ID"] = found["job_id"]
            finished(demo)
        named["RECEIPT_ID"] = found.get("receipt_id", named["RECEIPT_ID"])


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
