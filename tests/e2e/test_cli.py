"""The command line as its users have it: a process of its own against a real service, from the
ingest of files to the receipt of their deletion."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import preloaded
from tests.e2e.conftest import Documents, Serve
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.service import HANG_S, Service

QUESTION = "How long is the warranty?"


@pytest.fixture(scope="module")
def own(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[Service]:
    """A service that knows `twelve`, as files that the command line has ingested."""
    place = tmp_path_factory.mktemp("cli")
    (place / "docs").mkdir()
    for number, document in enumerate(twelve):
        (place / "docs" / f"{number:02}.md").write_text(
            f"# {document['title']}\n{document['text']}", encoding="utf-8"
        )
    # By itself, as the doctor here expects of its index.
    with Service(model, place / "data", **IN_PROCESS) as running:
        found = run(running, "ingest", str(place / "docs"), "--metadata", "kind=manual")
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith("12 documents in ") and "0 failed" in found.stdout
        assert "Traceback" not in found.stderr
        yield running


def run(service: Service, *given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
    clean["KVSTITCH_URL"] = f"http://127.0.0.1:{service.port}"
    return subprocess.run(
        [*preloaded.python(), "-m", "kvstitch.service.cli", *given],
        capture_output=True, text=True, timeout=2 * HANG_S, env=clean | environment,
    )  # fmt: skip


def scripted(service: Service, *given: str, code: int = 0) -> Any:
    found = run(service, *given, "--json")
    assert found.returncode == code, found.stderr
    return json.loads(found.stdout)


def test_an_answer_says_what_happened_to_every_document(own: Service) -> None:
    asked = ("ask", QUESTION, "--max-tokens", "4", "--filter", "kind=manual")
    short = run(own, *asked)
    assert short.returncode == 0 and "[1]" in short.stdout and "TPOT" not in short.stdout
    found = run(own, *asked, "--verbose")
    assert found.returncode == 0, found.stderr
    assert "\x1b" not in found.stdout
    for part in ("[1]", "memory", "KiB", "TTFT", "TPOT", "question_scout (ratio 0.15)", "load"):
        assert part in found.stdout, found.stdout
    result = scripted(own, "ask", QUESTION, "--max-tokens", "4", "--retrieval", "hybrid")
    assert {d["tier"] for d in result["cache"]["documents"]} == {"memory"}
    none = scripted(own, "ask", QUESTION, "--max-tokens", "4", "--filter", "kind=none")
    assert none["citations"] == []


def test_how_missing_chunks_are_computed_is_chosen_and_told(
    serve: Serve, twelve: Documents
) -> None:
    with serve(memory_tier_mib=0) as service:
        service.ingest(twelve)
        service.until(lambda: len(service.chunk_files()) >= 12, "chunks are stored")
        for path in service.chunk_files():
            path.unlink()
        given = (
            "ask",
            QUESTION,
            "--max-tokens",
            "4",
            "--method",
            "pie",
            "--cold",
            "as_stored",
            "--verbose",
        )
        found = run(service, *given)
    assert found.returncode == 0, found.stderr
    assert "cold" in found.stdout and "compute as stored" in " ".join(found.stdout.split())


def test_auto_needs_measurements(own: Service) -> None:
    found = run(own, "ask", QUESTION, "--quality", "0.95")
    assert found.returncode and "kvstitch tune" in found.stderr


def test_a_dry_run_is_told_apart(own: Service) -> None:
    found = run(own, "ask", QUESTION, "--explain")
    assert "nothing was generated" in found.stdout and "expected TTFT" in found.stdout
    result = scripted(own, "ask", QUESTION, "--explain", "--method", "vanilla")
    assert result["explain"] is True and result["recomputed_tokens"] == result["prompt_tokens"]


def test_methods_side_by_side(own: Service) -> None:
    given = ("ask", QUESTION, "--compare", "a3:1.0", "pie", "--max-tokens", "4")
    found = run(own, *given)
    assert found.returncode == 0, found.stderr
    rows = [line for line in found.stdout.splitlines() if "operations" not in line]
    assert any("vanilla" in row and "the reference" in row for row in rows)
    results = scripted(own, *given)["results"]
    full, all_of_it, none_of_it = (r["result"] for r in results)
    assert [r["fusion"]["method"] for r in results] == ["vanilla", "a3", "pie"]
    # With AMX other shapes of a product round otherwise, and this answer is a near tie.
    if not torch.cpu._is_amx_tile_supported():
        assert all_of_it["text"] == full["text"], "what recomputes everything is a full prefill"
    flops = [r["cache"]["flops"] for r in (full, none_of_it)]
    assert flops[1] < flops[0] == full["cache"]["full_prefill_flops"]


def test_pages_and_tables(own: Service) -> None:
    documents = scripted(own, "documents", "list", "--all")
    assert len(documents) == 12 and all(d["metadata"]["kind"] == "manual" for d in documents)
    (job,) = scripted(own, "jobs")
    assert job["state"] == "succeeded" and job["progress"]["done"] == 12
    found = run(own, "documents")
    assert found.stdout.count(".md") >= 12


def test_the_doctor_finds_a_service_well(own: Service, model: Path) -> None:
    found = scripted(
        own, "doctor", "--model", str(model), "--data-dir", str(own.data_dir), "--port",
        str(own.port), "--ssd-tier-gib", "0.1", "--memory-tier-mib", "8",
    )  # fmt: skip
    levels = {finding["check"]: finding["level"] for finding in found["checks"]}
    assert set(levels.values()) == {"ok"}, found
    assert any("12 documents" in finding["message"] for finding in found["checks"])


def test_the_key_is_taken_from_option_and_environment(own: Service) -> None:
    """Without keys the service lets anybody in, but a key that is none is refused."""
    for found in (
        run(own, "status", "--api-key", "kvs_wrong"),
        run(own, "status", KVSTITCH_API_KEY="kvs_wrong"),
    ):
        assert found.returncode == 1 and "is not valid" in found.stderr
    assert run(own, "status").returncode == 0


def test_a_reader_that_leaves_is_no_error(own: Service) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    url = f"http://127.0.0.1:{own.port}"
    found = subprocess.run(
        [*preloaded.python(), "-m", "kvstitch.service.cli", "documents", "--url", url],
        stdout=writing, stderr=subprocess.PIPE, timeout=HANG_S,
    )  # fmt: skip
    os.close(writing)
    assert (found.returncode, found.stderr) == (141, b"")


def test_a_deletion_ends_in_its_receipt(own: Service) -> None:
    """Last: it takes two documents away."""
    found = run(own, "documents", "delete", "00.md", "01.md")
    assert found.returncode == 0 and "completed" in found.stdout and "memory" in found.stdout
    assert len(scripted(own, "documents", "list", "--all")) == 10
