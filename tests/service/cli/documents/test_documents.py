"""`kvstitch jobs` and `kvstitch documents` against a running service with a fake worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstitch.service.cli import main
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig, until

__all__ = ["folder", "rig"]

Output = pytest.CaptureFixture[str]


def scripted(rig: Rig, capsys: Output, *given: str, code: int = 0) -> Any:
    """What a command gives a script."""
    capsys.readouterr()
    assert main([*given, "--json", "--url", rig.url]) == code
    return json.loads(capsys.readouterr().out)


def shown(rig: Rig, capsys: Output, *given: str, code: int = 0) -> str:
    """What it shows a person."""
    capsys.readouterr()
    assert main([*given, "--url", rig.url]) == code
    return capsys.readouterr().out


def test_jobs(rig: Rig, capsys: Output) -> None:
    assert "no jobs" in shown(rig, capsys, "jobs")
    first, second = rig.ingest()["job_id"], rig.ingest()["job_id"]
    assert [j["job_id"] for j in scripted(rig, capsys, "jobs")] == [second, first]
    assert [j["job_id"] for j in scripted(rig, capsys, "jobs", "list", "--limit", "1")] == [second]
    assert scripted(rig, capsys, "jobs", "list", "--state", "failed") == []
    assert scripted(rig, capsys, "jobs", "show", first, "--watch")["progress"]["done"] == 3
    out = shown(rig, capsys, "jobs", "show", first)
    assert first in out and "succeeded" in out and "3 created" in out
    assert main(["jobs", "show", "nothing", "--url", rig.url]) == 1
    assert "there is no job 'nothing'" in capsys.readouterr().err


def test_a_failed_job_is_told_by_exit_code(rig: Rig, capsys: Output) -> None:
    reply = rig.http.post(
        "/admin/precompute?doc_id=broken.pdf",
        content=b"%PDF-1.4 nothing more",
        headers={"Content-Type": "application/pdf"},
    )
    job_id = reply.json()["job_id"]
    out = shown(rig, capsys, "jobs", "show", job_id, "--watch", code=1)
    assert "broken.pdf" in out and "failed" in out
    assert scripted(rig, capsys, "jobs", "list", "--state", "failed")[0]["job_id"] == job_id


def test_a_job_is_cancelled(rig: Rig, capsys: Output) -> None:
    assert rig.worker is not None
    rig.call(rig.worker.stop)
    until(lambda: rig.http.get("/health/ready").status_code == 503, "the worker is away")
    many = [{"doc_id": str(n), "text": f"Number {n}."} for n in range(50)]
    job_id = rig.http.post("/admin/precompute", json={"documents": many}).json()["job_id"]
    assert scripted(rig, capsys, "jobs", "cancel", job_id)["state"] == "cancelled"
    assert "cancelled" in shown(rig, capsys, "jobs", "list", "--watch")
    ended = rig.http.get("/admin/jobs").json()["jobs"]
    assert [job["state"] for job in ended] == ["cancelled"]
    assert main(["jobs", "cancel", "none", "--url", rig.url]) == 1


def test_documents(rig: Rig, capsys: Output) -> None:
    rig.ingest()
    assert {d["doc_id"] for d in scripted(rig, capsys, "documents")} == {"oslo", "bergen", "rome"}
    assert len(scripted(rig, capsys, "documents", "list", "--limit", "2")) == 2
    assert "fish market" in shown(rig, capsys, "documents", "show", "bergen", "--text")
    assert "num_tokens" in shown(rig, capsys, "documents", "show", "bergen")
    assert "kept stored" in shown(rig, capsys, "documents", "pin", "oslo", "rome")
    pinned = {d["doc_id"] for d in scripted(rig, capsys, "documents") if d["pinned"]}
    assert pinned == {"oslo", "rome"}
    assert scripted(rig, capsys, "documents", "unpin", "oslo")[0]["pinned"] is False
    (only,) = scripted(rig, capsys, "documents", "collections")
    assert only["collection"] == "default" and only["documents"] == 3
    assert "no collection none" in shown(rig, capsys, "documents", "list", "--collection", "none")


def test_deletions_show_their_receipt(rig: Rig, capsys: Output) -> None:
    rig.ingest()
    rig.ingest([{"doc_id": str(y), "text": f"{y}", "metadata": {"year": y}} for y in (1, 2, 3)])
    receipt = scripted(rig, capsys, "documents", "delete", "oslo")
    assert receipt["state"] == "completed" and receipt["documents"] == 1
    out = shown(rig, capsys, "documents", "receipt", receipt["receipt_id"])
    assert receipt["receipt_id"] in out and "completed" in out
    gone = scripted(rig, capsys, "documents", "delete", "--filter", "year=2", "--yes")
    assert gone["doc_ids"] == ["2"]
    later = '{"year": {"gte": 2}}'
    gone = scripted(rig, capsys, "documents", "delete", "--filter", later, "--yes")
    assert gone["doc_ids"] == ["3"]
    left = {d["doc_id"] for d in scripted(rig, capsys, "documents")}
    assert left == {"bergen", "rome", "1"}
    assert scripted(rig, capsys, "documents", "delete", "--all", "--yes")["documents"] == 3
    assert scripted(rig, capsys, "documents") == []


def test_deletions_by_mistake(rig: Rig, capsys: Output) -> None:
    """Nobody at a terminal: a filter or --all needs --yes."""
    rig.ingest()
    for given, part in (
        (["--all"], "add --yes"),
        (["--filter", "year=1"], "add --yes"),
        (["--filter", "{}", "--yes"], "is empty"),
        ([], "say what to delete"),
        (["oslo", "--all"], "say what to delete"),
    ):
        assert main(["documents", "delete", *given, "--url", rig.url]) == 2
        assert part in capsys.readouterr().err
    assert len(scripted(rig, capsys, "documents")) == 3
    assert main(["documents", "delete", "rome", "naples", "--url", rig.url]) == 1
    assert "1 of 2 documents were not there" in capsys.readouterr().err
    assert main(["documents", "show", "../jobs", "--url", rig.url]) == 2
    assert "cannot be named in a URL" in capsys.readouterr().err
