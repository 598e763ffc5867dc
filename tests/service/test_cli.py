"""The command line against a running service with a fake worker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli import main
from service.cli.ingest import read_all
from tests.service.gateway.conftest import data, folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["data", "folder", "rig"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "north").mkdir(parents=True)
    (docs / "north" / "oslo.md").write_text("intro\n# The City of Oslo\nOslo is in Norway.\n")
    (docs / "rome.txt").write_text("# no title here\nRome is in Italy.")
    (docs / "more.jsonl").write_text(
        '{"doc_id": "x/1", "text": "Paris.", "title": "P", "other": 1}\n\n'
        '{"doc_id": "x/2", "text": "Bern.", "metadata": {"a": 1}}\n'
    )
    (docs / "image.png").write_bytes(b"\x89PNG")
    return docs


def test_files_become_documents(files: Path) -> None:
    found = {d["doc_id"]: d for d in read_all([files, files / "rome.txt"])}
    assert set(found) == {"north/oslo.md", "rome.txt", "x/1", "x/2"}
    assert found["north/oslo.md"]["title"] == "The City of Oslo"
    assert found["rome.txt"]["title"] == "rome" and found["x/2"]["metadata"] == {"a": 1}
    assert "other" not in found["x/1"]


def test_ingest_ask_status(rig: Rig, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", rig.url]
    assert main(["ingest", str(files), "--batch", "3", *url]) == 0
    assert "4 documents in 4 chunks, 0 failed" in capsys.readouterr().out
    assert main(["ask", "Where is Oslo?", "--ratio", "0.3", "--top-k", "2", *url]) == 0
    out = capsys.readouterr().out
    assert "[1] The City of Oslo (north/oslo.md:0-" in out and "memory" in out
    assert "TTFT" in out and "a3" in out
    assert main(["ask", "Where is Oslo?", "--json", "--document", "rome.txt", *url]) == 0
    assert json.loads(capsys.readouterr().out)["citations"][0]["doc_id"] == "rome.txt"
    assert main(["status", *url]) == 0
    assert "4 documents, 4 chunks" in capsys.readouterr().out


def test_errors_are_one_readable_line(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "x", "--method", "magic", "--url", rig.url]) == 1
    assert "known methods: a3, pie, vanilla (HTTP 422)" in capsys.readouterr().err
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    assert main(["ingest", str(tmp_path / "latin.txt"), "--url", rig.url]) == 1
    assert "iconv" in capsys.readouterr().err
    assert main(["ingest", str(tmp_path / "none"), "--url", rig.url]) == 1
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"doc_id": "a"}\n')
    assert main(["ingest", str(tmp_path / "bad.jsonl"), "--url", rig.url]) == 1
    assert "line 1" in capsys.readouterr().err


def test_unreachable_service(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ask", "x"], ["status"]):
        assert main([*command, "--url", f"http://127.0.0.1:{free_port}"]) == 1
        assert "kvstitch serve" in capsys.readouterr().err


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_serve_says_what_is_wrong(folder: Path, data: Path) -> None:
    wrong = serve("--port", "99999")
    assert wrong.returncode == 1 and "KVSTITCH_PORT" in wrong.stderr
    missing = serve("--model", str(data))
    assert missing.returncode == 1 and "no config.json" in missing.stderr
    assert "Traceback" not in wrong.stderr + missing.stderr


def test_port_in_use(folder: Path, data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = serve("--model", str(folder), "--data-dir", str(data / "d"), "--port", port)
    assert found.returncode == 1 and "give another --port" in found.stderr
    assert "Traceback" not in found.stderr
