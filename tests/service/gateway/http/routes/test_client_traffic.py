"""Requests as user interfaces, agents and libraries send them: answered, or refused for a reason.

Those of `openai_clients.jsonl` were written by hand, those of `recorded_clients.jsonl.xz` recorded
from the clients themselves (`python -m scripts.record_clients`).
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scripts.record_clients.__main__ import recorded_requests
from tests.data_folder import data_folder
from tests.fakes.worker import READY, FakeWorker
from tests.service.gateway.http.routes.test_openai import frames
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import Rig, running

ROOT = Path(__file__).parents[5]
FILE = ROOT / "tests" / "data" / "openai_clients.jsonl"
RECORDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
VALIDATOR = ROOT / "tests" / "e2e" / "clients" / "scripts" / "validate_answers.py"
# What is refused of the recorded requests, by the field that is named, and how often. All other
# requests are answered.
REFUSED = {
    # pictures, sound, tokens of another tokenizer
    **{"messages[0].content[1]": 2, "input[0].content[0]": 1, "input[3].content[1]": 1},
    **{"audio": 1, "modalities": 1, "input": 2},
    # models of OpenAI's; what would have to be kept, or run, here
    **{"model": 3, "background": 1, "previous_response_id": 1, "input[1].type": 1},
    **{"input[4].type": 1, "web_search_options": 2},
    # a call is required, and there is no function: four of the agents SDK; a hosted tool is
    "tool_choice": 5,
    **{"top_logprobs": 1, "echo": 1, "best_of": 1},
}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A service whose prompts may be as long as an agent's."""
    folder = make_folder(tmp_path_factory.mktemp("roomy") / "model")
    model = changed(READY.model, max_context=32_768)
    worker = FakeWorker("", ready=msgspec.structs.replace(READY, model=model, pool_tokens=65_536))
    with data_folder() as data, running(folder, data, worker=worker) as rig:
        rig.ingest()
        yield rig


def names() -> Iterator[str]:
    for record in RECORDS:
        yield f"{record['client']}: {record['what']}"


@pytest.mark.parametrize("record", RECORDS, ids=names())
def test_a_client_s_request_is_answered(shared: Rig, record: dict[str, Any]) -> None:
    body = record.get("body")
    path = record["path"]
    if body is None:
        listed = shared.http.get(path).json()
        assert listed["object"] == "list" and listed["data"][0]["object"] == "model"
        return
    response = shared.http.post(path, json=body)
    assert response.status_code == 200, response.text
    whole(path, body, response.text)


def whole(path: str, body: dict[str, Any], text: str) -> None:
    """Check that an answer is one, to its end."""
    if path == "/v1/embeddings":
        assert len(json.loads(text)["data"]) >= 1
    elif path == "/v1/responses":
        lines = [line for line in text.splitlines() if line.startswith("data: ")]
        last = json.loads(lines[-1][6:])["response"] if body.get("stream") else json.loads(text)
        assert last["status"] in ("completed", "incomplete") and last["usage"]["total_tokens"] > 0
        warned(last["kvstitch"]["warnings"], body)
    elif not body.get("stream"):
        found = json.loads(text)
        assert all(choice["finish_reason"] for choice in found["choices"])
        assert found["usage"]["total_tokens"] > 0
        warned(found["kvstitch"]["warnings"], body)
    else:
        *chunks, done = frames(text)
        assert done == "[DONE]"
        ends = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
        assert len(ends) == (body.get("n") or 1)
        warned(ends[0]["kvstitch"]["warnings"], body)
        if (body.get("stream_options") or {}).get("include_usage"):
            assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


def replayed(rig: Rig) -> Iterator[tuple[dict[str, Any], Any]]:
    """The recorded requests that have a body, each with its answer."""
    for record in recorded_requests():
        body = record.get("body")
        if body is None or record["path"].startswith("/v1/messages"):  # of the plugin messages
            continue
        if record["path"] == "/v1/embeddings":
            del body["model"]  # the embedder of tests has another name
        elif body.get("model") == "demo_model":
            body["model"] = "model"
        yield record, rig.http.post(record["path"], json=body)


def test_recorded_requests_are_answered_or_refused_with_a_reason(roomy: Rig) -> None:
    answered, refused = Counter[str](), Counter[str]()
    for record, response in replayed(roomy):
        client, where = record["client"], f"{record['client']}: {record['what']}"
        if response.status_code == 200:
            answered[client] += 1
            whole(record["path"], record["body"], response.text)
            continue
        assert response.status_code in (400, 404), (where, response.text)
        error = response.json()["error"]
        assert error["param"] and len(error["message"]) > len(error["param"]) + 20, where
        refused[error["param"]] += 1
    assert len(answered) >= 8 and answered.total() >= 200, answered
    assert dict(refused) == REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2026-11", "2025-11"])
def test_answers_are_of_openai_s_types(roomy: Rig, tmp_path: Path, version: str) -> None:
    """Every answer to what was recorded, with the official package of this month and a year ago."""
    python = ROOT / "build" / f"openai-{version}" / "bin" / "python"
    if not python.is_file():
        pytest.skip("the packages are not installed: scripts/install-clients.sh")
    answers = tmp_path / "answers.jsonl"
    with answers.open("w") as file:
        for record, response in replayed(roomy):
            if response.status_code == 200:
                kind = "stream" if record["body"].get("stream") else "whole"
                line = [record["path"], kind, response.text]
                print(json.dumps(line), file=file)
    ran = subprocess.run([python, VALIDATOR, answers], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    checked, faults = json.loads(ran.stdout)
    assert checked >= 200
    assert faults == [], "\n".join(faults)


def warned(warnings: list[str], body: dict[str, Any]) -> None:
    """Only what has no effect is named, and only if it was sent."""
    for text in warnings:
        name, found, _ = text.partition(" has no effect: ")
        assert not found or name.split("[")[0].split(".")[0] in body, text
    assert bool(body.get("user")) == any(text.startswith("user has no effect") for text in warnings)
