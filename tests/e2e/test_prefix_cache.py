"""Answered prompts are continued: the same question again, and the next turn of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service, tiers

Turns = list[dict[str, str]]


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def converse(service: Service, messages: Turns, **fields: object) -> dict[str, Any]:
    """An answer that is a whole number of tokens, so that the next turn repeats it to the token."""
    body = {"messages": messages, "max_tokens": 6, **fields}
    reply = service.http.post("/v1/rag/generate", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def kept(service: Service) -> float:
    return service.metrics().value("kvstitch_pool_kept_ratio")


@pytest.mark.parametrize(
    "method", [pytest.param("vanilla", marks=pytest.mark.slow), "question_scout"]
)
def test_a_conversation(serve: Serve, twelve: Documents, method: str) -> None:
    names = [d["doc_id"] for d in twelve[:3]]
    with serve(prefix_cache=True) as service:
        service.ingest(twelve[:3])
        asked = {"fusion": {"method": method}, "documents": names, "top_k": 3}
        turns = [say("user", f"What is {twelve[0]['title']} known for?")]
        first = converse(service, turns, **asked)
        assert first["cache"]["reused_tokens"] == 0

        again = converse(service, turns, **asked)
        assert again["text"] == first["text"] and tiers(again) == ["pool"] * 3
        assert again["cache"]["reused_tokens"] == again["usage"]["prompt_tokens"]
        assert again["cache"]["flops"] == 0
        details = again["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == again["usage"]["prompt_tokens"]

        by_hand = converse(service, turns, **asked, prefix_cache=False)
        assert by_hand["text"] == first["text"] and by_hand["cache"]["reused_tokens"] == 0

        # Retrieval ranks by the new question, so the order of the documents is asked for as it was.
        order = [c["doc_id"] for c in first["citations"]]
        turns += [say("assistant", first["text"]), say("user", turns[0]["content"])]
        later = converse(service, turns, **asked)
        if [c["doc_id"] for c in later["citations"]] == order:
            assert later["cache"]["reused_tokens"] >= first["usage"]["prompt_tokens"]
            assert tiers(later) == ["pool"] * 3
            assert later["cache"]["recomputed_tokens"] < 60
        else:  # pragma: no cover
            pytest.fail("the same question finds the same passages")

        metrics = service.settled_metrics()
        reused = again["cache"]["reused_tokens"] + later["cache"]["reused_tokens"]
        assert metrics.value("kvstitch_prompt_tokens_total", source="pool") == reused
        assert metrics.value("kvstitch_answer_segments_total", decision="reuse") == 8
        assert metrics.value("kvstitch_pool_kept_ratio") > 0
        assert metrics.value("kvstitch_pool_free_ratio") == 1


@pytest.mark.slow
def test_a_deleted_document_is_in_no_kept_prompt(serve: Serve, twelve: Documents) -> None:
    with serve(prefix_cache=True) as service:
        service.ingest(twelve[:2])
        question = f"What is {twelve[0]['title']} known for?"
        service.ask(question, fusion={"method": "pie"}, max_tokens=2)
        service.until(lambda: kept(service) > 0, "no prompt is kept")
        service.http.delete(f"/admin/documents/{twelve[0]['doc_id']}").raise_for_status()
        service.until(lambda: kept(service) == 0, "a prompt with the deleted text is kept")
        answer = service.ask(question, fusion={"method": "pie"}, max_tokens=2)
        assert answer["cache"]["reused_tokens"] == 0
