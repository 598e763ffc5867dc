"""POST /v1/rag/generate against a fake worker over real sockets."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kvstitch.service.messages.requests import Abort, Generate, Prefetch
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import DOCUMENTS, HANG_S, Rig, asking, events, running, until


def encode(rig: Rig, text: str) -> list[int]:
    return rig.gateway.prompts.tokenizer.encode_text(text)


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def test_answer_says_all_that_was_promised(rig: Rig) -> None:
    rig.ingest()
    fake(rig).answer = lambda request: encode(rig, "Oslo")
    result = rig.ask(seed=7).json()
    assert result["text"] == "Oslo" and result["finish_reason"] == "stop"
    assert result["seed"] == 7
    assert result["citations"][0]["doc_id"] == "oslo"
    cited = result["citations"][0]
    assert (cited["char_start"], cited["char_end"]) == (0, len(DOCUMENTS[0]["text"]))
    assert "text" not in cited or cited["text"] is None
    usage = result["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4 and usage["completion_tokens"] == 4
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    first = result["cache"]["documents"][0]
    assert first["doc_id"] == "oslo" and first["tier"] == "memory" and first["bytes"] > 0
    assert first["rows_recomputed"] == 0 and first["problems"] == []
    assert first["plan"] == "load" and first["why"] == ""
    assert {"embed", "retrieve", "plan", "queue", "load", "prefill"} <= set(result["stages"])
    assert 0 < result["timing"]["ttft_s"] <= result["timing"]["total_s"]
    assert (
        result["fusion"] == {"method": "question_scout", "ratio": 0.15}
        and result["eviction"] is None
    )
    assert result["warnings"] == []


def test_stream_has_sources_then_tokens_then_done(rig: Rig) -> None:
    rig.ingest()
    fake(rig).answer = lambda request: encode(rig, " Oslo it is")
    seen = rig.stream(include_text=True)
    assert [event for event, _ in seen[:2]] == ["sources", "token"] and seen[-1][0] == "done"
    assert {event for event, _ in seen[1:-1]} == {"token"}
    assert seen[0][1]["citations"][0]["text"] == DOCUMENTS[0]["text"]
    text = "".join(data["text"] for event, data in seen if event == "token")
    assert text == seen[-1][1]["text"] == "Oslo it is"


def test_log_probabilities_where_they_are_asked_for(rig: Rig) -> None:
    rig.ingest()
    fake(rig).answer = lambda request: encode(rig, " Oslo.")
    told = rig.ask(logprobs=1, stop=["."]).json()["logprobs"]
    assert "".join(one["token"] for one in told) == "Oslo"
    assert [one["text_offset"] for one in told] == [0, 1, 2, 3]
    assert told[0]["token_id"] == encode(rig, "O")[0] == told[0]["top_logprobs"][0]["token_id"]
    seen = rig.stream(logprobs=1, stop=["."])
    pieces = [data for event, data in seen if event == "token"]
    assert [one for data in pieces for one in data["logprobs"]] == told
    assert seen[-1][1]["logprobs"] == told
    assert rig.ask().json()["logprobs"] is None
    assert all(set(data) == {"text"} for event, data in rig.stream() if event == "token")
    for wrong in (-1, 21, True, "2"):
        refused = rig.ask(logprobs=wrong)
        assert refused.status_code == 422 and refused.json()["error"]["param"] == "logprobs"


def test_how_missing_chunks_are_computed(folder: Path, data: Path) -> None:
    """As the request says, else as the service is set; the answer says what happened."""
    with running(folder, data, cold="as_stored") as rig:
        rig.ingest(DOCUMENTS[:1])
        fake(rig).stored.clear()
        documents = rig.ask(top_k=1).json()["cache"]["documents"]
        assert [(d["tier"], d["computed"]) for d in documents] == [("cold", "as_stored")]
        documents = rig.ask(top_k=1, cold="in_context").json()["cache"]["documents"]
        assert documents[0]["computed"] == "in_context"
        dry = rig.ask(top_k=1, explain=True).json()["documents"]
        assert [(d["action"], d["computed"]) for d in dry] == [("recompute", "as_stored")]
        body = {
            "messages": [{"role": "user", "content": "Why?"}],
            "kvstitch": {"cold": "in_context"},
        }
        assert rig.http.post("/v1/chat/completions", json=body).status_code == 200
        sent = [m for m in fake(rig).received if isinstance(m, Generate)]
        assert [m.cold for m in sent] == ["as_stored", "in_context", "in_context"]
        refused = rig.ask(cold="warm")
        assert refused.status_code == 422 and refused.json()["error"]["param"] == "cold"


def test_worker_hears_of_the_documents_before_a_long_question_is_planned(rig: Rig) -> None:
    rig.ingest()
    rig.ask(question="Why is the sky blue? " * 48, top_k=2)
    hint, request = (m for m in fake(rig).received if isinstance(m, Prefetch | Generate))
    assert isinstance(hint, Prefetch) and isinstance(request, Generate)
    assert hint.documents == request.documents and len(request.documents) == 2


def test_worker_gets_the_planned_segments(rig: Rig) -> None:
    rig.ingest()
    rig.ask(top_k=2, temperature=0.5, seed=3, eviction={"method": "snapkv", "budget": 64})
    prompts = rig.gateway.prompts
    (request,) = (m for m in fake(rig).received if isinstance(m, Prefetch | Generate))
    assert isinstance(request, Generate) and len(request.documents) == 2
    assert request.system == prompts.system and request.system[0] == prompts.tokenizer.bos
    assert prompts.tokenizer.decode(request.documents[0].ids) == f"Oslo\n{DOCUMENTS[0]['text']}\n"
    question = prompts.tokenizer.decode(request.question)
    assert question == "Question: What is the capital of Norway?\nAnswer:"
    assert request.sampling.seed == 3 and request.sampling.temperature == 0.5
    assert request.eviction is not None and request.eviction.parameters == {"budget": 64}


def test_stop_string_ends_the_answer_and_the_sequence(rig: Rig) -> None:
    fake(rig).answer = lambda request: encode(rig, "one two STOP three") * 80
    fake(rig).token_delay_s = 0.01
    result = rig.ask(stop=["STOP"], max_tokens=1400).json()
    assert result["text"] == "one two " and result["finish_reason"] == "stop"
    assert result["usage"]["completion_tokens"] == len(encode(rig, "one two STOP"))
    assert [a.reason for a in fake(rig).received if isinstance(a, Abort)] == ["stop"]


def test_a_stop_string_is_the_reason_although_the_worker_came_to_its_own_end_first(
    rig: Rig,
) -> None:
    """What it made after the stop string is no part of the answer, and costs nobody anything."""
    ids = encode(rig, "one two STOP three four five six")
    fake(rig).answer = lambda request: ids
    result = rig.ask(stop=["STOP"], max_tokens=len(ids)).json()
    assert result["text"] == "one two " and result["finish_reason"] == "stop"
    assert result["usage"]["completion_tokens"] == len(encode(rig, "one two STOP"))


def test_unicode_arrives_whole_although_its_bytes_come_one_by_one(rig: Rig) -> None:
    answer = "Grüße aus 東京 🎉!"
    fake(rig).answer = lambda request: encode(rig, answer)
    seen = rig.stream(max_tokens=64)
    pieces = [data["text"] for event, data in seen if event == "token"]
    assert "".join(pieces) == answer and "🎉" in pieces and "�" not in "".join(pieces)


def test_max_tokens_above_the_context_is_clamped_and_said(rig: Rig) -> None:
    result = rig.ask(max_tokens=100_000).json()
    context = fake(rig).ready.model.max_context
    (request,) = fake(rig).seen(Generate)
    assert isinstance(request, Generate)
    assert request.sampling.max_tokens == context - result["usage"]["prompt_tokens"]
    assert "max_tokens was lowered from 100000" in result["warnings"][0]


def test_empty_corpus_answers_without_documents(rig: Rig) -> None:
    result = rig.ask().json()
    assert result["citations"] == [] and result["cache"]["documents"] == []
    assert "no documents" in result["warnings"][0]


def test_documents_restrict_the_answer(rig: Rig) -> None:
    rig.ingest()
    result = rig.ask(documents=["rome", "bergen"]).json()
    assert {c["doc_id"] for c in result["citations"]} == {"rome", "bergen"}
    assert rig.ask(top_k=0).json()["citations"] == []


def test_failure_of_the_worker_is_a_status_or_an_error_event(rig: Rig) -> None:
    from kvstitch.service.messages.replies import Failed

    fake(rig).refuse = Failed("", "worker_fault", "the engine failed")
    response = rig.ask()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "worker_fault"
    seen = rig.stream()
    assert [event for event, _ in seen] == ["sources", "error"]
    assert seen[-1][1]["error"]["message"] == "the engine failed"
    fake(rig).refuse = Failed("", "overloaded", "the queue is full")
    busy = rig.ask()
    assert busy.status_code == 503 and busy.headers["retry-after"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_disconnect_aborts_the_sequence(rig: Rig, stream: bool, phase: str) -> None:
    worker = fake(rig)
    worker.held = phase == "prefill"
    worker.token_delay_s = 0.2
    body = {"question": "long?", "stream": stream, "max_tokens": 1500}
    sent: list[int] = []
    worker.on_token = lambda request, number: sent.append(number)
    if stream:
        with (
            httpx.Client(base_url=rig.url, timeout=HANG_S) as client,
            client.stream("POST", "/v1/rag/generate", json=body) as response,
        ):
            seen = events(response)
            assert next(seen)[0] == "sources"
            if phase == "decode":
                assert next(seen)[0] == "token"
    else:
        with asking(rig, "/v1/rag/generate", body):
            until(lambda: sent if phase == "decode" else worker.seen(Generate), "under way")
    until(lambda: worker.seen(Abort), "abort")
    (abort,) = worker.seen(Abort)
    assert isinstance(abort, Abort) and abort.reason == "disconnect"
    until(lambda: rig.metric("kvstitch_requests_in_flight") == 0, "released")
    assert rig.metric("kvstitch_disconnects_total") == 1
    assert rig.metric("kvstitch_requests_total", fusion="question_scout", outcome="disconnect") == 1


def test_stream_headers_and_request_id(shared: Rig) -> None:
    body = {"question": "x", "stream": True}
    headers = {"X-Request-Id": "abc-1"}
    with shared.http.stream("POST", "/v1/rag/generate", json=body, headers=headers) as response:
        response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "abc-1"
    bad = shared.http.get("/health/live", headers={"X-Request-Id": "a b\tc"})
    assert len(bad.headers["x-request-id"]) == 32
