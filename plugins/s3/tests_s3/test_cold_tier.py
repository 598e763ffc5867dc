"""A machine whose memory and SSD are empty answers from what another one left in S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests_s3.s3_server import BUCKET, ENVIRONMENT, s3_server

QUESTION = "Which colour is named?"


def test_a_fresh_machine_reads_from_s3_and_answers_the_same(
    tmp_path: Path, model: Path, corpus: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    documents = corpus[:3]
    request = {
        "documents": [one["doc_id"] for one in documents],
        "top_k": 3,
        "max_tokens": 8,
        "fusion": {"method": "pie"},
    }
    with s3_server() as server:
        place = {
            "s3_url": f"s3://{BUCKET}/kv",
            "s3_endpoint": server.endpoint,
            "s3_region": "us-east-1",
            # What is computed goes to memory and S3, and to the SSD only by being read.
            "write_tiers": "s3",
        }
        with Service(model, tmp_path / "first", **place) as first:
            first.ingest(documents)
            first.until(lambda: first.wrote("s3", 4), "the chunks do not reach S3")
            before = first.ask(QUESTION, **request)
            assert set(tiers(before)) == {"memory"}
            assert not list((tmp_path / "first" / "kv").rglob("*.safetensors"))
        with Service(model, tmp_path / "fresh", **place) as fresh:
            fresh.ingest(documents)  # finds every chunk in S3, so it computes none
            assert fresh.metrics().value("kvstitch_store_new_keys_total") == 0
            answer = fresh.ask(QUESTION, **request)
            assert set(tiers(answer)) == {"s3"}
            assert answer["text"] == before["text"]
            assert answer["cache"]["documents"][0]["bytes"] > 0
            assert set(tiers(fresh.ask(QUESTION, **request))) == {"memory"}
            server.stop()
            again = fresh.ask(QUESTION, **request)
            assert again["text"] == before["text"]
