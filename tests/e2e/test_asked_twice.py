"""The quality benchmark asks a running service: with all defaults, and with full prefill."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.served.asking import append, ask, read
from benchmarks.quality.tasks.documentation import Asked
from kvstitch.client import Client
from tests.e2e.conftest import Documents
from tests.e2e.service import Service


def test_both_answers_and_what_they_were_made_of(
    service: Service, twelve: Documents, tmp_path: Path
) -> None:
    document = twelve[3]
    question = f"What is said about {document['title']}?"
    with Client(str(service.http.base_url)) as client:
        first = ask(client, Asked(question, ("no such answer",), document["doc_id"]))
        text = first.full.text
        again = ask(client, Asked(question, (text,), document["doc_id"]))

    assert first.full.method == {"method": "vanilla"}
    assert first.default.method["method"] not in ("vanilla", "")
    assert {name for name, _ in first.passages} <= {one["doc_id"] for one in twelve}
    assert 1 <= first.of_one_document <= len(first.passages) == len(first.default.tiers)
    assert first.full.tokens == first.default.tokens > 0
    assert 0 < first.default.recomputed < 1
    assert "cold" not in first.default.tiers
    assert min(first.full.ttft_s, first.default.ttft_s) > 0
    # Greedy, and computed from nothing that an earlier question has left.
    assert again.full.text == text
    assert again.full.right and not first.full.right

    append(tmp_path / "answers.jsonl", first)
    assert read(tmp_path / "answers.jsonl") == [first]
