"""Methods over HTTP: listed from their files, chosen per request, reported."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.e2e.embedding_server import embedding_settings
from tests.e2e.service import Service
from tests.service.worker.methods.test_methods import EVICTION, FUSION

QUESTION = "Which colour is it?"


def test_the_list_is_the_files(service: Service) -> None:
    listed = service.http.get("/v1/methods").json()
    for kind, files in (("fusion", FUSION), ("eviction", EVICTION)):
        assert {m["name"] for m in listed[kind]} == set(files)
        for method in listed[kind]:
            assert method["doc"]
            for facts in method["parameters"].values():
                assert {"type", "default", "doc"} <= set(facts)


@pytest.mark.parametrize("name", sorted(FUSION))
def test_every_fusion_answers_and_reports(service: Service, name: str) -> None:
    """Twice the same answer; the report's numbers fit each other."""
    fusion: dict[str, Any] = {"method": name}
    first = service.ask(QUESTION, fusion=fusion, max_tokens=4)
    again = service.ask(QUESTION, fusion=fusion, max_tokens=4)
    assert first["text"] == again["text"]
    assert first["fusion"]["method"] == name
    cache = again["cache"]
    rows = cache["rows_per_layer"]
    assert rows == sorted(rows, reverse=True)
    assert cache["flops"] > 0
    assert cache["coverage"] == 1.0
    recomputed = sum(d["rows_recomputed"] for d in cache["documents"])
    assert cache["recomputed_ratio"] == pytest.approx(
        recomputed / sum(d["tokens"] for d in cache["documents"])
    )
    assert all(d["bytes"] <= d["stored_bytes"] * 1.05 for d in cache["documents"])
    if name == "vanilla":
        assert cache["flops"] == pytest.approx(cache["full_prefill_flops"], rel=1e-6)
    else:
        assert {d["tier"] for d in cache["documents"]} == {"memory"}
        if name in ("samkv", "legolink"):  # documents this short are all ends
            return
        assert cache["flops"] < cache["full_prefill_flops"]
        assert recomputed < sum(d["tokens"] for d in cache["documents"])


@pytest.mark.parametrize("name", sorted(set(EVICTION) - {"headkv"}))
def test_every_eviction_holds_the_budget(service: Service, name: str) -> None:
    """After any prompt the pool holds the budget (in sum over layers), and the report says so."""
    whole = service.ask(QUESTION, max_tokens=4)
    assert whole["eviction"] is None
    n = whole["usage"]["prompt_tokens"]
    budget = n * 2 // 3
    eviction = {"method": name, "budget": budget}
    evicted = service.ask(QUESTION, max_tokens=4, eviction=eviction)
    kept = evicted["cache"]["kept_per_layer"]
    assert sum(kept) == pytest.approx(budget * len(kept))
    assert budget / n <= evicted["cache"]["coverage"] + 1e-6 <= 1 + 2e-6
    assert "evict" in evicted["stages"]


def test_headkv_needs_a_score_file(service: Service) -> None:
    """422 that names the method and how to make the file; streamed too."""
    for stream in (False, True):
        reply = service.post(QUESTION, eviction={"method": "headkv"}, stream=stream)
        assert reply.status_code == 422, reply.text
        error = reply.json()["error"]
        assert error["param"] == "eviction.method"
        assert "calibrat" in error["message"]


def test_a_layer_that_the_model_lacks(service: Service) -> None:
    for method, field in (("a3", "selection_layer"), ("cacheblend", "check_layer")):
        reply = service.post(QUESTION, fusion={"method": method, field: 500}, stream=True)
        assert reply.status_code == 422, reply.text
        error = reply.json()["error"]
        assert error["param"] == f"fusion.{field}"
        assert "from 1 to" in error["message"]


def test_samkv_takes_no_eviction(service: Service) -> None:
    for stream in (False, True):
        reply = service.post(
            QUESTION, fusion={"method": "samkv"}, eviction={"method": "snapkv"}, stream=stream
        )
        assert reply.status_code == 422, reply.text
        assert "leave eviction out" in reply.json()["error"]["message"]


def test_a_schedule_is_checked(service: Service) -> None:
    for schedule, named in (([0.2, 0.4], "fusion.schedule"), ([0.2, 7], "fusion.schedule[1]")):
        chosen = {"method": "cacheblend", "schedule": schedule}
        reply = service.post(QUESTION, fusion=chosen)
        assert reply.status_code == 422, reply.text
        assert reply.json()["error"]["param"] == named
    fine = {"method": "cacheblend", "schedule": [0.5, 0.3, 0.1]}
    rows = service.ask(QUESTION, fusion=fine, max_tokens=1)["cache"]["rows_per_layer"]
    assert rows[1] > rows[2] > rows[-1]


def test_no_such_folder(tmp_path: Path) -> None:
    """Refused at start with the setting's name."""
    nowhere = tmp_path / "nowhere"
    embedding = {f"KVSTITCH_{name.upper()}": str(v) for name, v in embedding_settings().items()}
    started = subprocess.run(
        [*preloaded.python(), "-m", "kvstitch.service.cli", "serve", "--port", "0"],
        env={**os.environ, "KVSTITCH_METHODS_DIR": str(nowhere),
             "KVSTITCH_DATA_DIR": str(tmp_path / "data"), **embedding},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert started.returncode != 0
    assert "methods_dir" in started.stderr + started.stdout
