"""Inline documents, messages and deadlines of /v1/rag/generate, against a fake worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.messages.requests import Abort, Generate, Prefetch
from tests.fakes.worker import FakeWorker
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.model_folders import FORMAT, make_folder
from tests.service.gateway.rig import DOCUMENTS, Rig, running

TEXT = "The lighthouse of Skagen is forty-six metres high. " * 8


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def test_inline_documents_are_cut_cited_and_not_kept(rig: Rig) -> None:
    inline = [{"text": TEXT, "title": "Skagen"}, {"text": "Short.", "doc_id": "mine"}]
    result = rig.ask(inline_documents=inline, include_text=True).json()
    cited = result["citations"]
    assert [c["doc_id"] for c in cited] == ["inline-1"] * (len(cited) - 1) + ["mine"]
    assert len(cited) > 2 and "".join(c["text"] for c in cited[:-1]) == TEXT
    for c in cited[:-1]:
        assert TEXT[c["char_start"] : c["char_end"]] == c["text"]
    assert [d["doc_id"] for d in result["cache"]["documents"]] == [c["doc_id"] for c in cited]
    assert len({c["chunk_id"] for c in cited}) == len(cited)
    assert all(c["chunk_id"] < -1 for c in cited)
    assert rig.http.get("/admin/documents").json()["documents"] == []
    request = fake(rig).seen(Generate)[-1]
    assert isinstance(request, Generate)
    decoded = rig.gateway.prompts.tokenizer.decode(request.documents[-1].ids)
    assert decoded == "Short.\n"


def test_the_best_passage_stands_last_where_the_model_wants_it(tmp_path: Path, data: Path) -> None:
    folder = make_folder(tmp_path / "model", fmt={**FORMAT, "passage_order": "best_last"})
    with running(folder, data) as rig:
        rig.ingest()
        result = rig.ask().json()
        cited = result["citations"]
        scores = [c["score"] for c in cited]
        assert cited[-1]["doc_id"] == "oslo" and scores == sorted(scores) and len(set(scores)) > 1
        assert [c["index"] for c in cited] == [1, 2, 3]
        assert [d["doc_id"] for d in result["cache"]["documents"]] == [c["doc_id"] for c in cited]
        request = fake(rig).seen(Generate)[-1]
        assert isinstance(request, Generate)
        decode = rig.gateway.prompts.tokenizer.decode
        prompt = [decode(document.ids) for document in request.documents]
        assert [text.partition("\n")[0].lower() for text in prompt] == [c["doc_id"] for c in cited]
        # Documents that come with the question stand as they came.
        inline = [{"text": "Bern.", "doc_id": "a"}, {"text": "Basel.", "doc_id": "b"}]
        own = rig.ask(inline_documents=inline).json()["citations"]
        assert [c["doc_id"] for c in own] == ["a", "b"]


def test_inline_text_has_the_same_ids_as_the_stored_document(rig: Rig) -> None:
    """So that it has the same chunk key, whichever way it came first."""
    rig.ingest(DOCUMENTS[:1])
    rig.ask(top_k=1)
    oslo = {"text": DOCUMENTS[0]["text"], "title": DOCUMENTS[0]["title"]}
    result = rig.ask(inline_documents=[oslo]).json()
    stored, inline = fake(rig).seen(Generate)
    assert isinstance(stored, Generate) and isinstance(inline, Generate)
    assert stored.documents[0].ids == inline.documents[0].ids
    assert result["cache"]["documents"][0]["tier"] == "memory"
    other = rig.ask(inline_documents=[{"text": "Another text under the same chunk id."}]).json()
    assert other["cache"]["documents"][0]["tier"] == "cold"


@pytest.mark.parametrize(
    ("choice", "any_method"),
    [
        ({}, True),
        ({"profile": "fast"}, True),
        ({"fusion": {"method": "balanced"}}, True),
        ({"fusion": {"method": "pie"}}, False),
        ({"fusion": {"method": "question_scout", "ratio": 0.2}}, False),
    ],
)
def test_full_prefill_may_take_the_place_of_a_method_that_is_not_named(
    rig: Rig, choice: dict[str, Any], any_method: bool
) -> None:
    assert rig.ask(**choice).status_code == 200
    [request] = fake(rig).seen(Generate)
    assert isinstance(request, Generate) and request.any_method == any_method


def test_how_certain_tokens_must_be_is_asked_or_set(rig: Rig) -> None:
    assert rig.ask().status_code == rig.ask(exact_below=0.5).status_code == 200
    read = rig.gateway.settings.model_copy(update={"exact_below": 2.0})
    rig.call(lambda: rig.gateway.reload(read))
    assert rig.ask().status_code == rig.ask(exact_below=0.0).status_code == 200
    asked = [each.exact_below for each in fake(rig).seen(Generate) if isinstance(each, Generate)]
    assert asked == [0.0, 0.5, 2.0, 0.0]
    refused = rig.ask(exact_below=-1.0)
    assert refused.status_code == 422 and "exact_below" in refused.text


def test_messages_are_answered(rig: Rig) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of Italy?"},
    ]
    rig.ingest()
    body = {"messages": messages, "top_k": 1}
    result = rig.http.post("/v1/rag/generate", json=body).json()
    assert result["citations"][0]["doc_id"] == "rome"
    [request] = fake(rig).seen(Generate)
    assert isinstance(request, Generate) and request.history == 0


@pytest.mark.parametrize(
    ("body", "status", "field", "remedy"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, 422, "question", "either"),
        ({"question": None, "messages": []}, 422, "messages", "at least 1"),
        ({"question": None, "messages": [{"role": "bot", "content": ""}]}, 422,
         "messages[0].role", "user"),
        ({"question": None, "messages": [{"role": "user", "text": ""}]}, 422,
         "messages[0].content", "missing"),
        ({"inline_documents": [{"text": " "}]}, 422, "inline_documents[0].text", "empty"),
        ({"inline_documents": [{"text": "a", "doc_id": "x"}, {"text": "b", "doc_id": "x"}]}, 422,
         "inline_documents[1].doc_id", "apart"),
        ({"inline_documents": [{"text": "a", "body": 1}]}, 422, "inline_documents[0].body",
         "title, doc_id"),
        ({"inline_documents": [{"text": "a"}], "top_k": 2}, 422, "top_k", "leave one"),
        ({"inline_documents": [{"text": "a"}], "collection": "c"}, 422, "collection", "leave one"),
        ({"inline_documents": [{"text": "a " * 40_000}]}, 400, "inline_documents", "less text"),
        ({"inline_documents": [{"text": "word " * 800}]}, 400, "inline_documents", "less text"),
        ({"collection": " "}, 422, "collection", "empty"),
        ({"collection": "x" * 200}, 422, "collection", "longer"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    shared: Rig, body: dict[str, Any], status: int, field: str, remedy: str
) -> None:
    response = shared.ask(**body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == field and remedy in error["message"], response.text


def test_explain_is_a_dry_run(rig: Rig) -> None:
    rig.ingest()
    response = rig.ask(explain=True, max_tokens=7)
    assert response.headers["server-timing"].startswith("embed;dur=")
    told = response.json()
    assert told["explain"] is True and "text" not in told
    assert told["citations"][0]["doc_id"] == told["documents"][0]["doc_id"] == "oslo"
    assert told["documents"][0]["tier"] == "memory" and told["documents"][0]["action"] == "load"
    assert 0 < told["flops"] < told["full_prefill_flops"]
    assert 0 < told["expected_ttft_s"] < told["full_prefill_ttft_s"]
    assert told["max_tokens"] == 7 and told["fusion"] == {"method": "question_scout", "ratio": 0.15}
    new = rig.ask(explain=True, inline_documents=[{"text": "Never seen."}]).json()
    assert new["documents"][0]["tier"] == "cold"
    assert not fake(rig).seen(Generate) and not fake(rig).seen(Prefetch)
    assert rig.metric("kvstitch_requests_in_flight") == 0
    refused = rig.ask(explain=True, stream=True)
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "stream"


@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline_ends_the_answer_with_what_there_is(rig: Rig, stream: bool) -> None:
    rig.ingest()
    worker = fake(rig)

    def hold(request: Generate, number: int) -> None:
        worker.held = number >= 2

    worker.on_token = hold
    headers = {"X-Request-Deadline-Ms": "2500"}  # time for three tokens on a busy machine, too
    body = {"question": "x", "max_tokens": 1000, "stream": stream}
    response = rig.http.post("/v1/rag/generate", json=body, headers=headers)
    assert response.status_code == 200 and "deadline" in response.text
    (abort,) = fake(rig).seen(Abort)
    assert isinstance(abort, Abort) and abort.reason == "deadline"
    assert rig.metric("kvstitch_requests_total", fusion="question_scout", outcome="deadline") == 1
    if not stream:
        result = response.json()
        assert result["finish_reason"] == "deadline"
        assert result["usage"]["completion_tokens"] == 3
        worker.held = False
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1000}
        found = rig.http.post("/v1/chat/completions", json=chat, headers=headers).json()
        assert found["choices"][0]["finish_reason"] == "length"
        assert found["kvstitch"]["finish_reason"] == "deadline"


def test_a_deadline_that_passes_before_the_answer_begins_is_504(rig: Rig) -> None:
    rig.ingest()
    body = {"question": "x " * 300}
    headers = {"X-Request-Deadline-Ms": "1"}
    response = rig.http.post("/v1/rag/generate", json=body, headers=headers)
    assert response.status_code == 504, response.text
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert response.headers["x-should-retry"] == "false"
    assert rig.metric("kvstitch_requests_in_flight") == 0
    for wrong in ("0", "soon", "-5"):
        headers = {"X-Request-Deadline-Ms": wrong}
        response = rig.http.post("/v1/rag/generate", json=body, headers=headers)
        assert response.status_code == 422
        assert response.json()["error"]["param"].lower() == "x-request-deadline-ms"


YEARS = [
    {"doc_id": "old", "text": "The bridge was painted green.", "metadata": {"year": 1950}},
    {"doc_id": "new", "text": "The bridge was painted blue.", "metadata": {"year": 2020}},
]


def cited(rig: Rig, **body: Any) -> list[dict[str, Any]]:
    response = rig.ask(question="How was the bridge painted?", **body)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["citations"]
    return found


def test_filters_and_search_modes_reach_the_retriever(rig: Rig) -> None:
    rig.ingest(YEARS)
    assert [c["doc_id"] for c in cited(rig, filter={"year": {"gte": 2000}})] == ["new"]
    both = cited(rig, retrieval="hybrid")
    assert {c["doc_id"] for c in both} == {"old", "new"}
    assert all(c["dense_rank"] and c["sparse_rank"] for c in both)
    assert all(c["dense_rank"] is None for c in cited(rig, retrieval="sparse"))
    chat = {"messages": [{"role": "user", "content": "bridge"}],
            "kvstitch": {"filter": {"year": 1950}, "retrieval": "sparse"}}  # fmt: skip
    found = rig.http.post("/v1/chat/completions", json=chat).json()["kvstitch"]["citations"]
    assert [c["doc_id"] for c in found] == ["old"]
    assert cited(rig, collection="elsewhere") == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"filter": {"year": {"near": 3}}}, "filter.year.near"),
        ({"filter": []}, "filter"),
        ({"retrieval": "magic"}, "retrieval"),
        ({"rerank": True}, "rerank"),
        ({"inline_documents": [{"text": "a"}], "rerank": True}, "rerank"),
    ],
)
def test_wrong_searches_are_named(shared: Rig, body: dict[str, Any], field: str) -> None:
    response = shared.ask(**body)
    assert response.status_code == 422 and response.json()["error"]["param"] == field


def test_the_reranker_decides(folder: Path, data: Path) -> None:
    """One that likes whatever is blue; what it gives is cited, and its time is a stage."""

    def scores(path: str, body: Any) -> tuple[int, Any]:
        texts = body["texts"]
        return 200, [{"index": i, "score": float("blue" in t)} for i, t in enumerate(texts)]

    # A busy machine may keep the reranker waiting.
    patient: dict[str, Any] = {"rerank_deadline_s": 20}
    with endpoint(scores) as model, running(folder, data, reranker_url=model.url, **patient) as rig:
        rig.ingest(YEARS)
        result = rig.ask(question="Which bridge was painted green?", rerank=True, top_k=1).json()
        assert [c["doc_id"] for c in result["citations"]] == ["new"]
        assert result["citations"][0]["rerank_score"] == 1.0
        assert result["stages"]["rerank"] > 0
