"""Follow-up questions over HTTP, against a fake worker."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.gateway.answers import question_rewriting
from kvstitch.service.messages.replies import Failed
from kvstitch.service.messages.requests import Generate
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import Rig, running, until

# The kettle's guarantee is one of many.
DOCUMENTS = [
    {
        "doc_id": "kettle",
        "title": "Kettle",
        "text": "The Brightwater kettle boils in a minute. Its guarantee is for thirty months.",
    },
    *(
        {"doc_id": f"other{n}", "title": f"Other {n}", "text": f"Thing {n} has its guarantee."}
        for n in range(4)
    ),
]
CONVERSATION = [
    {"role": "user", "content": "How fast does the Brightwater kettle boil?"},
    {"role": "assistant", "content": "In a minute."},
    {"role": "user", "content": "And its guarantee?"},
]


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def ask(rig: Rig, messages: Sequence[Any] = CONVERSATION, **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "top_k": 1, "retrieval": "sparse", **fields}
    reply = rig.http.post("/v1/rag/generate", json=body)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def rewriting_as(rig: Rig, text: str) -> None:
    encode = rig.gateway.prompts.tokenizer.encode_text

    def answer(request: Generate) -> list[int]:
        return encode(text if request.id.startswith("condense-") else "A minute.")

    fake(rig).answer = answer


def test_a_follow_up_is_searched_together_with_what_was_asked_before(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    off = ask(rig, condense="off", top_k=3)
    assert "kettle" not in [c["doc_id"] for c in off["citations"]]
    assert off["retrieval"] == {"query": "And its guarantee?", "joined": None, "condense": "off"}
    joined = ask(rig, top_k=3)  # the default
    assert "kettle" in [c["doc_id"] for c in joined["citations"]]
    assert joined["retrieval"] == {
        "query": "And its guarantee?",
        "joined": "And its guarantee? How fast does the Brightwater kettle boil?",
        "condense": "join",
    }
    scores = [c["score"] for c in joined["citations"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    # What the prompt says is not changed by what is searched for.
    first, second = (r for r in fake(rig).seen(Generate) if isinstance(r, Generate))
    assert first.question == second.question


def test_a_first_question_is_searched_as_it_is(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    for condense in ("join", "model"):
        result = ask(rig, CONVERSATION[:1], condense=condense)
        assert result["retrieval"]["condense"] == "off" and result["retrieval"]["joined"] is None
        assert result["citations"][0]["doc_id"] == "kettle" and "condense" not in result["stages"]
    assert len(fake(rig).seen(Generate)) == 2


def test_the_model_rewrites_the_question(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    rewriting_as(rig, ' User: "Does the Brightwater kettle boil?"\nMore that nobody asked for')
    result = ask(rig, condense="model")
    assert result["citations"][0]["doc_id"] == "kettle"
    assert result["retrieval"] == {
        "query": "Does the Brightwater kettle boil?", "joined": None, "condense": "model",
    }  # fmt: skip
    assert result["stages"]["condense"] > 0 and result["text"] == "A minute."
    rewrite, answer = (r for r in fake(rig).seen(Generate) if isinstance(r, Generate))
    assert rewrite.system == answer.system and rewrite.documents == []
    assert rewrite.fusion.name == "vanilla" and rewrite.sampling.temperature == 0
    asked = rig.gateway.prompts.tokenizer.decode(rewrite.question)
    for message in CONVERSATION:
        assert message["content"] in asked


@pytest.mark.parametrize("text", ["", "...", "\n\n"])
def test_a_rewriting_of_no_use_falls_back_to_joining(rig: Rig, text: str) -> None:
    rig.ingest(DOCUMENTS)
    rewriting_as(rig, text)
    result = ask(rig, condense="model", top_k=3)
    assert result["retrieval"]["condense"] == "join"
    assert "kettle" in [c["doc_id"] for c in result["citations"]]
    assert any("did not rewrite" in warning for warning in result["warnings"])


def test_a_model_that_is_late_or_fails_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ingest(DOCUMENTS)
    rewriting_as(rig, "Does the Brightwater kettle boil?")
    fake(rig).held = True
    monkeypatch.setattr(question_rewriting, "DEADLINE_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, rig, condense="model")
        try:
            until(lambda: fake(rig).aborted, "the rewriting is given up")
        finally:
            fake(rig).held = False
        late = asked.result()
    assert late["retrieval"]["condense"] == "join" and late["stages"]["condense"] >= 0.05
    assert next(iter(fake(rig).aborted)).startswith("condense-")
    monkeypatch.setattr(question_rewriting, "DEADLINE_S", 60.0)
    fake(rig).refuse = Failed("", "overloaded", "full")
    reply = rig.http.post(
        "/v1/rag/generate", json={"messages": CONVERSATION, "condense": "model", "explain": True}
    )
    assert reply.status_code != 200  # the explanation is refused, too, but not by an exception


def test_the_setting_decides_where_the_request_does_not(folder: Path, data: Path) -> None:
    with running(folder, data, condense="off") as rig:
        rig.ingest(DOCUMENTS)
        assert ask(rig)["retrieval"]["condense"] == "off"
        assert ask(rig, condense="join")["retrieval"]["condense"] == "join"


def test_openai_clients_conversations_are_condensed(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    body = {"messages": CONVERSATION, "kvstitch": {"top_k": 3, "retrieval": "sparse"}}
    details = rig.http.post("/v1/chat/completions", json=body).json()["kvstitch"]
    assert details["retrieval"]["condense"] == "join"
    assert "kettle" in [c["doc_id"] for c in details["citations"]]


def test_documents_of_the_request_are_not_searched(rig: Rig) -> None:
    inline = [{"text": "The kettle boils."}]
    body = {"messages": CONVERSATION, "inline_documents": inline}
    assert rig.http.post("/v1/rag/generate", json=body).json()["retrieval"] is None
    refused = rig.http.post("/v1/rag/generate", json={**body, "condense": "join"})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "condense"
