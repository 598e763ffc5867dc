"""Thousands of prompts in orders that were never asked for: what is kept does not wear out."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.clients.conftest import DOCUMENTS as TWO
from tests.e2e.clients.conftest import PYTHON, SCRIPTS, _run
from tests.e2e.metrics import Metrics
from tests.e2e.models import DEMO
from tests.e2e.service import Service
from tests_vllm.test_real_vllm import QUESTIONS, RealVllm, newest, segments

pytestmark = pytest.mark.slow
CORPUS, PROMPTS, EACH, ROOM = 48, 2000, 6, 1.2
MIB = 2**20


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """The newest release, with the demo model."""
    server = RealVllm(newest(), DEMO, tmp_path_factory.mktemp("vllm") / "log")
    server.start()
    yield server
    server.kill_nine()


def test_orders_that_are_new_wear_nothing_out(vllm, corpus, tmp_path):
    """The memory tier holds 1.2 times the corpus, and there is no other."""
    documents = corpus[:CORPUS]
    plain = {"dtype": "float32", "codec": "raw", "ssd_tier_gib": 0}
    with Service(DEMO, tmp_path / "own", **plain) as service:
        service.ingest(documents)
        used = service.settled_metrics().value("kvstitch_tier_used_bytes", tier="memory")
    room = round(ROOM * used / MIB)
    handing = {"engine": "vllm", "engine_url": vllm.url, "memory_tier_mib": room}
    with Service(DEMO, tmp_path / "data", **plain, **handing) as service:
        service.ingest(documents)
        before, left = reported(service), segments()
        names = [document["doc_id"] for document in documents]

        def ask(number: int) -> tuple[tuple[str, ...], int, int, bool]:
            source = random.Random(number)
            wanted = source.sample(names, EACH)
            question = f"{source.choice(QUESTIONS)} {source.choice(documents)['title']}?"
            answer = service.ask(question, documents=wanted, top_k=EACH, max_tokens=2)
            found = [each["tier"] for each in answer["cache"]["documents"]]
            order = tuple(each["doc_id"] for each in answer["citations"])
            return order, found.count("memory"), len(found), bool(answer["warnings"])

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(PROMPTS)))
        after = reported(service)
        service.until(lambda: len(segments()) <= len(left), "a segment is left")
    part = PROMPTS // 8
    rates = [
        sum(hits for _, hits, _, _ in answers[n : n + part])
        / sum(all_ for _, _, all_, _ in answers[n : n + part])
        for n in range(0, PROMPTS, part)
    ]
    record: dict[str, Any] = {
        "prompts": PROMPTS, "orders": len({order for order, *_ in answers}),
        "corpus_mib": round(used / MIB, 1), "tier_mib": room,
        "hit_rate_by_250": [round(rate, 4) for rate in rates],
        "warnings": sum(warned for *_, warned in answers),
    }  # fmt: skip
    print(json.dumps(record))
    assert record["orders"] >= 0.95 * PROMPTS
    assert min(rates) >= rates[0] - 0.01 and rates[0] > 0.99, record
    assert record["warnings"] == 0
    stays = {
        "store_new_keys_total": {},
        "precomputed_chunks_total": {"status": "stored"},
        "tier_evictions_total": {"tier": "memory"},
    }
    for name, labels in stays.items():
        values = [found.value(f"kvstitch_{name}", **labels) for found in (before, after)]
        assert values[0] == values[1], name


def reported(service: Service) -> Metrics:
    """The worker's counters, which it reports once a second, also where it decodes nothing."""
    time.sleep(3.0)
    return service.metrics()


def test_an_agent_framework_and_forms(vllm, tmp_path):
    """OpenAI's agents SDK as it comes: a tool that must be called, over both of its APIs."""
    if not PYTHON.is_file():
        pytest.skip("the clients are not installed: scripts/install-clients.sh")
    settings = {"engine": "vllm", "engine_url": vllm.url, "dtype": "float32"}
    with Service(DEMO, tmp_path / "data", **settings) as service:
        service.ingest(TWO)
        found = _run([str(PYTHON), "-W", "ignore", str(SCRIPTS / "agents_client.py")], service)
        for kind in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel"):
            assert found[kind] == ["goat", "4 degrees", "goat"]
        schema = {"type": "object", "properties": {"animal": {"enum": ["goat", "cow"]}},
                  "required": ["animal"], "additionalProperties": False}  # fmt: skip
        form: dict[str, Any] = {"name": "animal", "schema": schema, "strict": True}
        message = {"role": "user", "content": "Which animal does Quentin Bruvik keep?"}
        asked = {
            "messages": [message],
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        said = service.http.post("/v1/chat/completions", json=asked).json()
        assert json.loads(said["choices"][0]["message"]["content"])["animal"] in ("goat", "cow")
        assert service.metrics().value("kvstitch_stage_seconds_count", stage="engine") > 5
