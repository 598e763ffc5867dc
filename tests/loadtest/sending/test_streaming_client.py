"""The measured times of a stream from a real socket whose parts arrive at scripted times."""

from __future__ import annotations

import json

import pytest

from loadtest.measurement.request_record import FAILED, OK, OVERLOADED, REJECTED, RequestRecord
from loadtest.sending.streaming_client import EncodedRequest, StreamingClient
from loadtest.traffic.routes import ChatRoute, LoadRequest, MethodUnderTest, RagRoute, Route
from tests.loadtest.scripted_server import HEAD, Script, playing

DUE = 90.0
USAGE = {"prompt_tokens": 60, "completion_tokens": 5}
CACHE = {
    "system": {"tier": "memory", "tokens": 10, "rows_recomputed": 0},
    "documents": [
        {"tier": "memory", "tokens": 20, "rows_recomputed": 3},
        {"tier": "ssd", "tokens": 15, "rows_recomputed": 0},
        {"tier": "cold", "tokens": 5, "rows_recomputed": 5},
    ],
}
SOURCES = {"memory": 27, "recomputed": 3, "ssd": 15, "cold": 5}


def sse(event: str, data: object) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, str] | None, **fields: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta}]
    return f"data: {json.dumps({'choices': choices, **fields})}\n\n".encode()


async def record_of(script: Script, route: Route) -> RequestRecord:
    body = json.dumps(
        route.body(LoadRequest("Why?", max_tokens=5), MethodUnderTest.parse("a3:0.2"))
    ).encode()
    record = RequestRecord(0.0)
    async with playing(script) as url, StreamingClient(url, route, clock=script.clock) as client:
        await client.send(EncodedRequest(0.0, body), DUE, record)
    return record


async def test_a_rag_stream_is_timed_by_its_tokens() -> None:
    token = sse("token", {"text": "goat"})
    script = Script(
        [
            (101.0, sse("sources", {"citations": []})),
            (102.0, b": ping\n\n"),
            (103.0, token[:9]),  # the first token's event begins here …
            (104.0, token[9:]),  # … and is complete here
            (106.0, token + token),  # two in one packet
            (107.0, token),
            (108.0, sse("done", {"usage": USAGE, "cache": CACHE})),
        ]
    )
    record = await record_of(script, RagRoute({"top_k": 2}))
    assert record.outcome == OK and record.error is None
    # Times count from the due time and to the first text, not to headers, sources or a ping.
    assert record.ttft_s == 104.0 - DUE
    assert record.itl_s == [2.0, 0.0, 1.0]
    assert record.e2e_s == 108.0 - DUE
    assert record.tpot_s == (108.0 - 104.0) / (5 - 1)
    assert (record.prompt_tokens, record.completion_tokens) == (60, 5)
    assert record.sources == SOURCES
    assert json.loads(script.requests[0]) == {
        "question": "Why?",
        "fusion": {"method": "a3", "ratio": 0.2},
        "max_tokens": 5,
        "stream": True,
        "top_k": 2,
        "prefix_cache": False,
    }


async def test_an_openai_stream_is_timed_by_its_text() -> None:
    text = chunk({"content": "goat"}, usage=None)
    script = Script(
        [
            (101.0, chunk({"role": "assistant", "content": ""}, usage=None)),
            (103.0, text),
            (104.0, text),
            (105.0, chunk({}, kvstitch={"cache": CACHE}) + chunk(None, usage=USAGE)),
            (106.0, b"data: [DONE]\n\n"),
        ]
    )
    record = await record_of(script, ChatRoute())
    assert record.outcome == OK
    assert record.ttft_s == 103.0 - DUE and record.itl_s == [1.0]
    assert record.e2e_s == 106.0 - DUE and record.tpot_s == 3.0 / 4
    assert record.sources == SOURCES
    assert json.loads(script.requests[0])["kvstitch"] == {
        "fusion": {"method": "a3", "ratio": 0.2},
        "prefix_cache": False,
    }


async def test_an_answer_without_text_ends_with_its_first_token() -> None:
    """As the service counts it."""
    script = Script([(105.0, sse("done", {"usage": {**USAGE, "completion_tokens": 1}}))])
    record = await record_of(script, RagRoute())
    assert record.outcome == OK and record.ttft_s == record.e2e_s == 105.0 - DUE
    assert record.tpot_s is None


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (sse("error", {"error": {"message": "the worker died"}}), "the worker died"),
        (sse("token", {"text": "a"}), "broke off"),
        (b"event: done\ndata: {}\n\n", "KeyError"),
        (b"event: done\ndata: {\n\n", "JSONDecodeError"),
    ],
)
async def test_a_stream_that_goes_wrong_is_a_failure(part: bytes, says: str) -> None:
    record = await record_of(Script([(101.0, part)]), RagRoute())
    assert record.outcome == FAILED and record.error is not None and says in record.error


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, REJECTED), (503, OVERLOADED), (500, FAILED), (404, FAILED)]
)
async def test_refusals_are_told_apart(status: int, outcome: str) -> None:
    head = HEAD.replace(b"200 OK", f"{status} No".encode())
    record = await record_of(Script([], head=head), RagRoute())
    assert record.outcome == outcome and str(status) in (record.error or "")


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    async with playing(Script([])) as url:
        pass
    record = RequestRecord(0.0)
    async with StreamingClient(url, RagRoute()) as client:
        await client.send(EncodedRequest(0.0, b"{}"), DUE, record)
    assert record.outcome == FAILED and "Connect" in (record.error or "")
