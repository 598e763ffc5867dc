"""`kvstitch ingest` says beforehand what it will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.cli import main
from kvstitch.service.cli.documents.account import forecast
from kvstitch.service.cli.documents.sources import scan
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]
MIB = 1024**2


@pytest.fixture
def files(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(4):
        (docs / f"{number}.txt").write_text("word " * 200)
    (docs / "scan.pdf").write_bytes(b"%" * 4000)
    return docs


def status(**fields: Any) -> dict[str, Any]:
    return {
        "model": {"codec": "raw"},
        "ingest": {"tokens_per_s": 10.0, "kv_bytes_per_token": 1000.0},
        "tiers": {
            "memory": {"capacity_bytes": 1_000_000.0, "used_bytes": 450_000.0},
            "ssd": {"capacity_bytes": 1e9, "used_bytes": 0.0},
            "redis": {"capacity_bytes": 0.0},
        },
        **fields,
    }


def test_tokens_bytes_time_and_room(files: Path) -> None:
    made = forecast(scan([str(files)]).sources, 5, status())
    assert made is not None and (made.documents, made.file_bytes) == (5, 8000)
    assert made.tokens == 1100  # 4,000 bytes of text, and a tenth of the PDF's
    assert (made.kv_bytes, made.seconds) == (1_100_000, 110.0)
    lines = "\n".join(made.lines())
    assert "5 documents, 7.8 KiB: about 1,100 tokens, 1.0 MiB of KV (raw)" in lines
    assert "about 2 min" in lines
    assert "memory has room for 50 % (537.1 KiB), ssd has room for all" in lines
    assert "redis" not in lines
    assert "k8v8" in lines


def test_a_rate_that_nobody_knows_is_not_made_up(files: Path) -> None:
    unknown = status(ingest={"tokens_per_s": None, "kv_bytes_per_token": 1.0})
    made = forecast(scan([str(files)]).sources, 5, unknown)
    assert made is not None and made.seconds is None
    assert "when the first of them are stored" in "\n".join(made.lines())
    assert "k8v8" not in "\n".join(made.lines())  # all tiers have room


@pytest.mark.parametrize("without", ["ingest", "model"])
def test_a_service_that_says_nothing(files: Path, without: str) -> None:
    assert forecast(scan([str(files)]).sources, 5, status(**{without: None})) is None


def test_it_is_said_before_and_measured_afterwards(
    rig: Rig, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["ingest", *(str(files / f"{n}.txt") for n in range(4)), "--url", rig.url]
    assert main(given) == 0
    said = capsys.readouterr().err
    assert "4 documents, 3.9 KiB: about 1,000 tokens" in said
    assert rig.http.get("/status").json()["ingest"]["kv_bytes_per_token"] > 0
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["forecast"]
    assert (said["documents"], said["unchanged"], said["tokens"]) == (4, 4, 0)
    (files / "0.txt").write_text("word " * 300)
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["forecast"]
    assert (said["unchanged"], said["tokens"]) == (3, 375)


def test_room_on_disk_is_what_is_free_there(files: Path) -> None:
    ingest = {"tokens_per_s": None, "kv_bytes_per_token": 1000.0, "disk_free_bytes": 330_000}
    made = forecast(scan([str(files)]).sources, 5, status(ingest=ingest))
    assert made is not None and made.tiers == {"memory": 550_000, "ssd": 330_000}
    assert "ssd has room for 30 % (322.3 KiB)" in "\n".join(made.lines())
