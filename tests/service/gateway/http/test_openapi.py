"""The API's description: examples that are true, and schemathesis, which believes every word."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from kvstitch.service.gateway.http.openapi import METHODS, examples
from tests.service.gateway.rig import Rig

ROOT = Path(__file__).parents[4]
OFFERED = tuple((f"{kind}Request", "model") for kind in ("Chat", "Completion", "Responses"))
CASES_PER_OPERATION = 3


@pytest.fixture(scope="module")
def described(shared: Rig) -> dict[str, Any]:
    found: dict[str, Any] = shared.http.get("/openapi.json").json()
    return found


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in described["paths"].items():
        for method in METHODS:
            if method in found:
                yield method, path, found[method]


def test_every_route_has_examples_that_fit_its_schema(described: dict[str, Any]) -> None:
    """Recorded from a service; scripts/record_api_examples.py makes them again."""
    recorded = examples()
    # Recorded with another model, which has other methods.
    described = copy.deepcopy(described)
    del described["paths"]["/retrieval"]  # of the plugin kvstitch-dify, which has its own
    for model, field in (("MethodChoice", "method"), *OFFERED):
        del described["components"]["schemas"][model]["properties"][field]["enum"]
    routes = {(method, path) for method, path, _ in operations(described)}
    assert set(recorded) == routes, "run scripts/record_api_examples.py"
    for method, path, operation in operations(described):
        example = recorded[method, path]
        for media, bodies in example.requests.items():
            schema = operation["requestBody"]["content"][media]["schema"]
            for name, body in bodies.items():
                assert_fits(described, schema, body, f"{method} {path}: {name}")
        answers = [a for status, a in operation["responses"].items() if status.startswith("2")]
        for media, body in example.response.items():
            schema = answers[0]["content"][media]["schema"]
            assert answers[0]["content"][media]["example"] == body
            assert_fits(described, schema, body, f"{method} {path}: response")
        if method == "post":
            assert any(example.requests.values()), f"{path} has no example of a request"


def assert_fits(described: dict[str, Any], schema: Any, body: Any, where: str) -> None:
    whole = {**schema, "components": described["components"]}
    faults = [fault.message for fault in jsonschema_rs.validator_for(whole).iter_errors(body)]
    assert not faults, (where, faults)


def test_the_description_names_what_there_is(described: dict[str, Any]) -> None:
    models = described["components"]["schemas"]
    assert models["MethodChoice"]["properties"]["method"]["enum"] == [
        *("exact", "balanced", "fastest", "a3", "pie", "question_scout", "vanilla", "snapkv")
    ]
    named = models["ChatRequest"]["properties"]["model"]["enum"]
    assert {"model", "model:fastest", "model:pie"} <= set(named)
    chat = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "404", "429", "500", "503", "504"} <= set(chat)
    assert "text/event-stream" in chat["200"]["content"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/rag/generate", "POST"),
        ("/admin/documents/x", "DELETE, GET, HEAD"),
        ("/v1/models", "GET, HEAD"),
    ],
)
def test_another_method_is_told_which_there_are(shared: Rig, path: str, allowed: str) -> None:
    response = shared.http.patch(path)
    assert response.status_code == 405 and response.headers["allow"] == allowed


def test_schemathesis_finds_nothing(rig: Rig, tmp_path: Path) -> None:
    """All checks, a fixed seed, a few cases of every operation; docs/api.md has the long run."""
    rig.ingest()
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{rig.url}/openapi.json"),
        *("--checks", "all", "--seed", "1", "--max-examples", str(CASES_PER_OPERATION)),
        *("--phases", "examples,fuzzing", "--no-color", "--generation-database", "none"),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    cases = re.search(r"(\d+) generated", ran.stdout)
    assert cases is not None and int(cases[1]) > 50, json.dumps(ran.stdout[-2000:])
