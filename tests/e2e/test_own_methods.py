"""Methods of the operator's own, one file each in a folder: listed, validated, planned, explained,
evicted after, reported token by token and drawn in the console, with no other line changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.conftest import Documents, Serve
from tests.e2e.console.browser import Console
from tests.e2e.console.test_console import check_counts
from tests.e2e.service import Service
from tests.e2e.test_sparse import long_documents

FOLDER = Path(__file__).parent / "own_methods"
QUESTION = "Which colour is it?"


@pytest.mark.slow
def test_a_dense_one(serve: Serve, twelve: Documents) -> None:
    with serve(methods_dir=FOLDER) as service:
        service.ingest(twelve[:3])
        listed = {m["name"]: m for m in service.http.get("/v1/methods").json()["fusion"]}
        assert "whatever the question" in listed["every_kth"]["doc"]
        assert listed["every_kth"]["parameters"]["every"]["default"] == 4
        chosen = {"method": "every_kth", "every": 3}
        answer = service.ask(QUESTION, fusion=chosen, max_tokens=2)
        for document in answer["cache"]["documents"]:
            assert document["rows_recomputed"] == pytest.approx(document["tokens"] / 3, abs=1)
        reply = service.post(QUESTION, fusion={"method": "every_kth", "every": 0})
        assert reply.status_code == 422
        assert reply.json()["error"]["param"] == "fusion.every"


@pytest.mark.slow
def test_a_two_pass_one(serve: Serve, twelve: Documents) -> None:
    """Its repair ratio is found by its declaration, whatever it is called: the planner may choose
    it, and the answer reports it."""
    chosen = {"method": "last_reader", "share": 0.3}
    with serve(methods_dir=FOLDER) as service:
        service.ingest(twelve[:3])
        answer = service.ask(QUESTION, fusion=chosen, max_tokens=4)
        cache, prompt = answer["cache"], answer["usage"]["prompt_tokens"]
        assert cache["ratio"] == 0.3
        recomputed = sum(d["rows_recomputed"] for d in cache["documents"])
        assert recomputed == int(0.3 * prompt + 1e-9)
        assert cache["flops"] < cache["full_prefill_flops"]
        auto = service.ask(QUESTION, fusion={"method": "last_reader", "share": "auto"})
        assert auto["cache"]["ratio"] == 0.2  # from memory there is nothing to hide behind

        forecast = explain(service, chosen)
        assert forecast["recomputed_tokens"] == cache["recomputed_tokens"]
        assert forecast["flops"] == pytest.approx(cache["flops"], rel=0.25)

        budget = prompt * 2 // 3
        evicted = service.ask(
            QUESTION,
            fusion=chosen,
            eviction={"method": "snapkv", "budget": budget},
            max_tokens=4,
            include_tokens=True,
        )
        kept = evicted["cache"]["kept_per_layer"]
        assert sum(kept) == pytest.approx(budget * len(kept))
        assert evicted["text"][:1] == answer["text"][:1]
        documents = evicted["cache"]["tokens"]["documents"]
        assert all(any(run["entries"] for run in d["runs"]) for d in documents)
        assert all(d["scores"] is not None for d in documents)


def test_a_sparse_one(serve: Serve, endless_model: Path, corpus: Documents) -> None:
    """From SSD: it reads and holds a part of the documents, and an explanation says how much."""
    settings = {
        "methods_dir": FOLDER,
        "chunk_tokens": 1024,
        "memory_tier_mib": 0,
        "sketches": True,
    }
    chosen = {"method": "every_block", "every": 5}
    with serve(model=endless_model, **settings) as service:
        service.ingest(long_documents(corpus))
        forecast = explain(service, chosen)
        answer = service.ask(QUESTION, fusion=chosen, max_tokens=4, include_tokens=True)
        cache = answer["cache"]
        read = sum(d["bytes"] for d in cache["documents"])
        assert read < 0.6 * sum(d["stored_bytes"] for d in cache["documents"])
        assert 0.2 < cache["kept_ratio"] < 0.6 and cache["recomputed_ratio"] == 0
        planned = sum(d["load_bytes"] for d in forecast["documents"])
        assert planned == pytest.approx(read, rel=0.15)  # without what stands beside keys
        assert forecast["recomputed_tokens"] == cache["recomputed_tokens"]
        assert forecast["flops"] == pytest.approx(cache["flops"], rel=0.25)
        runs = [run for d in cache["tokens"]["documents"] for run in d["runs"]]
        assert {bool(run["entries"]) for run in runs} == {True, False}
        assert service.ask(QUESTION, fusion=chosen, max_tokens=4)["text"] == answer["text"]
        reply = service.post(QUESTION, fusion=chosen, eviction={"method": "snapkv"})
        assert reply.status_code == 422
        assert "leave eviction out" in reply.json()["error"]["message"]


def explain(service: Service, fusion: dict[str, object]) -> dict[str, Any]:
    reply = service.post(QUESTION, fusion=fusion, explain=True, stream=False)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.slow
def test_they_are_drawn(browser: Browser, serve: Serve, twelve: Documents) -> None:
    """The console offers them and marks every token of their prompts."""
    with serve(methods_dir=FOLDER) as service:
        service.ingest(twelve)
        for method in ("last_reader", "every_block"):
            console = Console(browser, service)
            try:
                page = console.ready()
                console.ask(QUESTION, method=method)
                (done,) = console.done()
                assert done["fusion"]["method"] == method
                check_counts(page.locator(".result"), done)
                assert console.wrong == []
            finally:
                console.close()


@pytest.mark.slow
def test_the_contract_of_methods_runs_over_them() -> None:
    contract = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/service/worker/methods/test_methods.py"),
            *("-k", "every_kth or last_reader or every_block or describe or file_is_a_method"),
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "KVSTITCH_METHODS_DIR": str(FOLDER)},
        capture_output=True,
        text=True,
    )
    assert contract.returncode == 0, contract.stdout[-3000:]
    assert " passed" in contract.stdout
