"""One prompt over a real socket: what is sent, what is timed, and what counts as a failure."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from benchmarks.peers.asking import FAILED, OK, ask
from benchmarks.peers.dialects import Completions, Kvstitch
from benchmarks.peers.prompts import Prompt
from loadtest.measurement.event_stream import ServerSentEvent
from loadtest.measurement.streamed_answer import StreamedAnswer
from loadtest.traffic.routes import CorpusDocument
from service.prompt import Turn
from tests.benchmarks.peers.streaming_server import events, streaming

PROMPT = Prompt(
    "1 a", "shuffled", (Turn("user", "Why?"),), (CorpusDocument("7", "t", "x"),), (1, 107, 5)
)


def test_the_token_ids_are_sent_and_the_answer_is_read() -> None:
    ticks = count(10)
    with streaming() as server:
        sample = ask(
            server.url,
            Completions("m"),
            PROMPT,
            4,
            contestant="fake",
            place=2,
            clock=lambda: float(next(ticks)),
        )
    [body] = server.bodies
    assert body["prompt"] == [1, 107, 5] and body["max_tokens"] == 4
    assert body["stream"] and body["temperature"] == 0
    assert (sample.outcome, sample.contestant, sample.place) == (OK, "fake", 2)
    assert sample.text == "one two"
    assert (sample.prompt_tokens, sample.completion_tokens, sample.cached_tokens) == (3, 2, 2)
    assert sample.ttft_s is not None and sample.e2e_s is not None
    assert 1 <= sample.ttft_s <= sample.e2e_s  # readings of our clock, which counts the pieces
    assert "error" not in sample.to_json()


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (events(9), 200, "the server counted 9 prompt tokens, not 3"),
        (events(3)[:-1], 200, "the stream broke off"),
        ([{"error": {"message": "no memory"}}], 200, "no memory"),
        (["no JSON"], 200, "JSONDecodeError"),
        ([], 503, "HTTP 503"),
    ],
)
def test_faults_of_the_server_are_failures(answer: list[Any], status: int, why: str) -> None:
    with streaming(answer, status) as server:
        sample = ask(server.url, Completions("m"), PROMPT, 4)
    assert sample.outcome == FAILED and sample.error is not None and why in sample.error
    assert sample.ttft_s is None


def test_a_server_that_is_not_there_is_a_failure() -> None:
    with streaming() as server:
        url = server.url
    assert "ConnectError" in str(ask(url, Completions("m"), PROMPT, 4).error)


def test_kvstitch_gets_the_texts_and_its_events_are_read() -> None:
    dialect = Kvstitch("pie", "They say,")
    body = dialect.body(PROMPT, 4)
    assert body["messages"] == [{"role": "user", "content": "Why?"}]
    assert [document["doc_id"] for document in body["inline_documents"]] == ["7"]
    assert body["fusion"] == {"method": "pie"} and body["stream"]
    answer = StreamedAnswer()
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    for now, (name, content) in enumerate(
        [
            ("sources", {}),
            ("token", {"text": "They say, so"}),
            ("token", {"text": " it is"}),
            ("done", {"usage": usage}),
        ]
    ):
        dialect.read(ServerSentEvent(name, json.dumps(content)), answer, float(now))
    assert answer.text.strip() == "so it is"  # without the words that the prompt ended with
    assert answer.text_at == [1.0, 2.0] and answer.ended_at == 3.0
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)
