"""OpenAI's routes against a fake worker: shapes, streams, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.messages.replies import Failed
from kvstitch.service.messages.requests import Abort, Generate
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import DOCUMENTS, Rig, asking, pinged, running, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "What is the capital of Norway?"}]


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def says(rig: Rig, text: str) -> None:
    fake(rig).answer = lambda request: rig.gateway.prompts.tokenizer.encode_text(text)


def chat(rig: Rig, **body: Any) -> httpx.Response:
    return rig.http.post(CHAT, json={"model": "model", "messages": ASK, **body})


def frames(text: str) -> list[Any]:
    """The data of a stream that holds nothing but data lines and comments."""
    out: list[Any] = []
    for line in text.splitlines():
        assert line == "" or line.startswith(("data: ", ":")), line
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            out.append(data if data == "[DONE]" else json.loads(data))
    return out


def last_request(rig: Rig) -> Generate:
    request = fake(rig).seen(Generate)[-1]
    assert isinstance(request, Generate)
    return request


def test_chat_completion(rig: Rig) -> None:
    rig.ingest()
    says(rig, "Oslo")
    response = chat(rig, seed=-3, max_completion_tokens=9, max_tokens=500)
    assert response.headers["server-timing"].startswith("embed;dur=")
    found = response.json()
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-")
    assert found["model"] == "model" and found["created"] > 1_700_000_000
    (choice,) = found["choices"]
    (annotation,) = choice["message"].pop("annotations")
    assert annotation["url_citation"]["title"] == "Oslo"
    assert choice["message"] == {"role": "assistant", "content": "Oslo", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["index"] == 0
    assert found["usage"]["completion_tokens"] == 4
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert found["kvstitch"]["citations"][0]["doc_id"] == "oslo"
    assert found["kvstitch"]["cache"]["documents"][0]["tier"] == "memory"
    sampling = last_request(rig).sampling
    assert sampling.max_tokens == 9 and sampling.seed == 2**63 - 3


def test_chat_stream(rig: Rig) -> None:
    rig.ingest()
    says(rig, "Oslo it is")
    response = chat(rig, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert "embed;dur=" in response.headers["server-timing"]
    first, *middle, finish, usage, done = frames(response.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["kvstitch"]["citations"][0]["doc_id"] == "oslo"
    assert "".join(m["choices"][0]["delta"]["content"] for m in middle) == "Oslo it is"
    assert all("role" not in m["choices"][0]["delta"] for m in middle)
    assert finish["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert finish["kvstitch"]["timing"]["ttft_s"] > 0
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 10
    assert done == "[DONE]"
    chunks = [first, *middle, finish, usage]
    assert len({(c["id"], c["created"], c["object"], c["model"]) for c in chunks}) == 1
    assert all(c["usage"] is None for c in chunks[:-1])


def test_usage_is_left_out_unless_asked_for(shared: Rig) -> None:
    *chunks, done = frames(chat(shared, stream=True).text)
    assert done == "[DONE]" and all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_text_completion_whole_and_streamed(rig: Rig) -> None:
    rig.ingest()
    says(rig, "Oslo it is")
    body = {"model": "model", "prompt": "What is the capital of Norway?", "max_tokens": 32}
    found = rig.http.post(TEXT, json=body).json()
    assert found["object"] == "text_completion" and found["id"].startswith("cmpl-")
    assert found["choices"] == [
        {"index": 0, "text": "Oslo it is", "logprobs": None, "finish_reason": "stop"}
    ]
    asked = last_request(rig)
    first, *middle, finish, done = frames(rig.http.post(TEXT, json={**body, "stream": True}).text)
    assert first["kvstitch"]["citations"] and first["choices"][0]["text"] == ""
    assert "".join(m["choices"][0]["text"] for m in middle) == "Oslo it is"
    assert finish["choices"][0]["finish_reason"] == "stop" and done == "[DONE]"
    assert rig.http.post(TEXT, json={**body, "prompt": [body["prompt"]]}).status_code == 200
    chat(rig)  # one way to an answer: the same question is the same prompt
    assert last_request(rig).question == asked.question
    assert last_request(rig).documents == asked.documents


def test_log_probabilities_of_a_chat_whole_and_streamed(rig: Rig) -> None:
    rig.ingest()
    says(rig, " Oslo🎉. No")
    found = chat(rig, logprobs=True, top_logprobs=2, stop=".").json()
    assert last_request(rig).sampling.logprobs == 2
    (choice,) = found["choices"]
    told = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "Oslo🎉" and choice["logprobs"]["refusal"] is None
    assert bytes(byte for one in told for byte in one["bytes"]).decode() == "Oslo🎉"
    first = told[0]
    assert (first["token"], first["bytes"], first["logprob"]) == ("O", [79], -0.5)
    assert [(top["token"], top["logprob"]) for top in first["top_logprobs"]] == [
        ("O", -0.5),
        ("P", -1.5),
    ]
    *chunks, done = frames(chat(rig, logprobs=True, top_logprobs=2, stop=".", stream=True).text)
    shown = [c["choices"][0]["logprobs"] for c in chunks]
    assert done == "[DONE]" and shown[0] is None and shown[-1] is None
    assert [one for some in shown[1:-1] for one in some["content"]] == told
    assert [one["top_logprobs"] for one in chat_logprobs(rig, logprobs=True)] == [[]] * 12
    assert last_request(rig).sampling.logprobs == 0


def chat_logprobs(rig: Rig, **body: Any) -> list[Any]:
    found: list[Any] = chat(rig, **body).json()["choices"][0]["logprobs"]["content"]
    return found


def test_log_probabilities_of_a_text_whole_and_streamed(rig: Rig) -> None:
    rig.ingest()
    says(rig, " Oh é.")
    body = {"model": "model", "prompt": "What is the capital of Norway?", "logprobs": 2}
    found = rig.http.post(TEXT, json=body).json()["choices"][0]
    told = found["logprobs"]
    assert found["text"] == "Oh é."
    assert told["tokens"] == ["O", "h", " ", "bytes:\\xc3", "bytes:\\xa9", "."]
    assert told["text_offset"] == [0, 1, 2, 3, 3, 4]
    assert told["token_logprobs"] == [-0.5] * 6
    assert told["top_logprobs"][0] == {"O": -0.5, "P": -1.5}
    *chunks, _ = frames(rig.http.post(TEXT, json={**body, "stream": True}).text)
    shown = [c["choices"][0]["logprobs"] for c in chunks[1:-1]]
    for name, values in told.items():
        assert [value for some in shown for value in some[name]] == values
    alone = rig.http.post(TEXT, json={**body, "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert alone["top_logprobs"][0] == {"O": -0.5}


def test_extension_chooses_documents_and_methods(rig: Rig) -> None:
    rig.ingest()
    extension = {
        "documents": ["rome"],
        "top_k": 1,
        "fusion": {"method": "a3", "ratio": 0.5},
        "eviction": {"method": "snapkv", "budget": 9},
        "include_text": True,
    }
    found = chat(rig, model="model:pie", kvstitch=extension).json()["kvstitch"]
    assert [c["text"] for c in found["citations"]] == [DOCUMENTS[2]["text"]]
    assert found["fusion"] == {"method": "a3", "ratio": 0.5}
    assert found["eviction"] == {"method": "snapkv", "budget": 9}
    silent = chat(rig, kvstitch={"include_citations": False}).json()["kvstitch"]
    assert silent["citations"] is None
    streamed = frames(chat(rig, stream=True, kvstitch={"include_citations": False}).text)
    assert "kvstitch" not in streamed[0]


def test_models_are_listed_with_their_presets(shared: Rig) -> None:
    """Three by name; the papers' names are known, and not listed."""
    listed = shared.http.get("/v1/models").json()["data"]
    usual = {"method": "question_scout", "ratio": 0.15}
    presets = {"model:exact": {"method": "vanilla"}, "model:balanced": usual}
    presets["model:fastest"] = usual  # without primers
    assert [m["id"] for m in listed] == ["model", *presets]
    assert all(m["object"] == "model" and m["created"] > 0 for m in listed)
    for entry in listed:
        assert shared.http.get(f"/v1/models/{entry['id']}").json() == entry
    for name, fusion in presets.items():
        assert shared.http.get(f"/v1/models/{name}").json()["fusion"] == fusion
        found = chat(shared, model=name).json()
        assert found["model"] == name and found["kvstitch"]["fusion"] == fusion
    of_paper = shared.http.get("/v1/models/model:a3").json()
    assert of_paper["fusion"] == {"method": "a3", "ratio": 0.15}
    found = chat(shared, model="model:pie").json()
    assert found["model"] == "model:pie" and found["kvstitch"]["fusion"] == {"method": "pie"}
    for name in ("gpt-4o", "model:magic", "other:pie", ""):
        response = chat(shared, model=name)
        assert response.status_code == 404, name
        assert response.json()["error"]["code"] == "model_not_found"
    assert shared.http.get("/v1/models/nope").status_code == 404


def test_history_and_system_text_go_behind_the_documents(rig: Rig) -> None:
    rig.ingest()
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Which city "},
                                     {"type": "text", "text": "is rainy?"}]},
        {"role": "assistant", "content": "Bergen"},
        *ASK,
    ]  # fmt: skip
    found = chat(rig, messages=messages, kvstitch={"top_k": 1}).json()
    assert found["kvstitch"]["citations"][0]["doc_id"] == "oslo"  # the last message is searched
    asked = last_request(rig)
    prompts = rig.gateway.prompts
    assert asked.system == prompts.system
    assert prompts.tokenizer.decode(asked.question) == (
        "Be brief.\nQuestion: Which city is rainy?\nAnswer: Bergen\n\n"
        "Question: What is the capital of Norway?\nAnswer:"
    )


@pytest.mark.parametrize(
    "ignored",
    [
        {"user": None, "store": False, "metadata": {}, "service_tier": "auto"},
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "logit_bias": {}},
        {"response_format": {"type": "text"}, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"stream": None, "temperature": None, "stop": None, "seed": None, "top_p": None},
        {"parallel_tool_calls": True, "top_k": -1, "min_p": 0, "skip_special_tokens": True},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(shared: Rig, ignored: dict[str, Any]) -> None:
    plain = chat(shared).json()
    response = chat(shared, **ignored)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["choices"] == plain["choices"]
    assert found["kvstitch"]["warnings"] == plain["kvstitch"]["warnings"]


def test_hints_for_caches_are_named_wherever_they_are(shared: Rig) -> None:
    """As Anthropic, OpenAI, LiteLLM and OpenRouter have them; none of them makes an error."""
    hint = {"type": "ephemeral", "ttl": "1h"}
    sent = {
        "cache_control": hint,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"ttl": "30m"},
    }
    part = {"type": "text", "text": "Why?", "cache_control": hint}
    messages = [{"role": "system", "content": "Be brief.", "cache_control": hint},
                {"role": "user", "content": [part]}]  # fmt: skip
    function = {"name": "look", "parameters": {"type": "object"}, "cache_control": hint}
    tools = [{"type": "function", "function": function, "cache_control": hint}]
    warnings = chat(shared, messages=messages, tools=tools, tool_choice="none", **sent).json()[
        "kvstitch"
    ]["warnings"]
    named = {text.partition(" has no effect: ")[0] for text in warnings if "has no effect" in text}
    assert named == {
        *sent, "messages[0].cache_control", "messages[1].content[0].cache_control",
        "tools[0].cache_control", "tools[0].function.cache_control",
    }  # fmt: skip
    completed = shared.http.post("/v1/completions", json={"prompt": "Why?", **sent}).json()
    told = {w.partition(" has no effect: ")[0] for w in completed["kvstitch"]["warnings"]}
    assert set(sent) <= told


def test_fields_without_an_effect_are_named(shared: Rig) -> None:
    sent = {"user": "u", "store": True, "metadata": {"a": "b"}, "reasoning_effort": "low"}
    named = {*sent, "messages[0].name"}
    messages = [{**ASK[0], "name": "Ada"}]
    warnings = chat(shared, messages=messages, **sent).json()["kvstitch"]["warnings"]
    assert {text.partition(" has no effect: ")[0] for text in warnings} == named
    *_, finish, _ = frames(chat(shared, messages=messages, stream=True, **sent).text)
    assert finish["kvstitch"]["warnings"] == warnings


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", "invalid_request"),
        (CHAT, {"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "allowed_tools"}},
         "tool_choice", "unsupported"),
        (CHAT, {"tools": [{"function": {"name": "two words"}}]}, "tools[0].function.name",
         "invalid_request"),
        (CHAT, {"tools": [{"function": {"name": "f"}}] * 2}, "tools[1].function.name",
         "invalid_request"),
        (CHAT, {"tool_choice": "required"}, "tool_choice", "invalid_request"),
        (CHAT, {"tool_choice": "sometimes"}, "tool_choice", "invalid_request"),
        (CHAT, {"guided_json": 3}, "guided_json", "invalid_request"),
        (CHAT, {"guided_grammar": "start: x"}, "guided_grammar", "invalid_request"),
        (CHAT, {"tools": [{"function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice",
         "invalid_request"),
        (CHAT, {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}],
                "tool_choice": "required"}, "tools", "invalid_request"),
        (CHAT, {"tools": [{"function": {"name": "f"}}], "guided_regex": "a"}, "guided_regex",
         "invalid_request"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions", "unsupported"),
        (CHAT, {"n": 17}, "n", "invalid_request"),
        (CHAT, {"logit_bias": {"five": 1}}, "logit_bias.five", "invalid_request"),
        (CHAT, {"response_format": {"type": "json_schema"}},
         "response_format.json_schema.schema", "invalid_request"),
        (CHAT, {"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_request"),
        (CHAT, {"guided_regex": "("}, "guided_regex", "invalid_request"),
        (CHAT, {"guided_json": "{"}, "guided_json", "invalid_request"),
        (CHAT, {"structured_outputs": {}}, "structured_outputs", "invalid_request"),
        (CHAT, {"min_tokens": 9, "max_tokens": 3}, "min_tokens", "invalid_request"),
        (CHAT, {"repetition_penalty": 0}, "repetition_penalty", "invalid_request"),
        (CHAT, {"logprobs": 3}, "logprobs", "invalid_request"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "invalid_request"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_request"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_request"),
        (TEXT, {"prompt": "Why?", "logprobs": 6}, "logprobs", "invalid_request"),
        (TEXT, {"prompt": "Why?", "logprobs": True}, "logprobs", "invalid_request"),
        (TEXT, {"prompt": "Why?", "top_logprobs": 2}, "top_logprobs", "unsupported"),
        (CHAT, {"presence_penalty": 2.5}, "presence_penalty", "invalid_request"),
        (CHAT, {"modalities": ["audio"]}, "modalities", "unsupported"),
        (CHAT, {"messages": []}, "messages", "invalid_request"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "invalid_request"),
        (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "messages[0].role",
         "unsupported"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id",
         "invalid_request"),
        (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages",
         "invalid_request"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0]", "unsupported"),
        (CHAT, {"messages": [*ASK, {"role": "assistant", "content": "x"}]}, "messages",
         "invalid_request"),
        (CHAT, {"messages": [{"role": "user", "content": " "}]}, "messages", "invalid_request"),
        (CHAT, {"temperature": -1}, "temperature", "invalid_request"),
        (CHAT, {"max_tokens": 0}, "max_tokens", "invalid_request"),
        (CHAT, {"kvstitch": {"topk": 1}}, "kvstitch.topk", "invalid_request"),
        (CHAT, {"kvstitch": {"fusion": {"method": "magic"}}}, "kvstitch.fusion.method",
         "unknown_method"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 2000}]}, "messages",
         "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}, "messages",
         "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": "."}] * 3000}, "messages",
         "context_length_exceeded"),
        (CHAT, {"kvstitch": {"inline_documents": [{"text": "word " * 20_000}]}},
         "kvstitch.inline_documents", "context_length_exceeded"),
        (CHAT, {"continue_final_message": True}, "continue_final_message", "invalid_request"),
        (CHAT, {"add_generation_prompt": False}, "add_generation_prompt", "invalid_request"),
        (CHAT, {"format": "json"}, "format", "unsupported"),
        (CHAT, {"response_format": {"type": "json_object", "schema": {}}},
         "response_format.schema", "unsupported"),
        (TEXT, {"prompt": ["a"] * 9, "n": 2}, "prompt", "invalid_request"),
        (TEXT, {"prompt": []}, "prompt", "unsupported"),
        (TEXT, {"prompt": [1, 2]}, "prompt", "unsupported"),
        (TEXT, {"prompt": "a", "echo": True}, "echo", "unsupported"),
        (TEXT, {"prompt": "a", "best_of": 3}, "best_of", "unsupported"),
        (TEXT, {}, "prompt", "invalid_request"),
        (TEXT, {"prompt": " "}, "prompt", "invalid_request"),
        (TEXT, {"prompt": "a", "kvstitch": {"inline_documents": [{"text": " "}]}},
         "kvstitch.inline_documents[0].text", "invalid_request"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_400_and_named(
    shared: Rig, path: str, body: dict[str, Any], param: str, code: str
) -> None:
    base: dict[str, Any] = {"messages": ASK} if path == CHAT else {}
    for stream in (False, True):
        response = shared.http.post(path, json={**base, **body, "stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code), response.text
        assert error["type"] == "invalid_request_error"
        assert response.headers["x-should-retry"] == "false"
    assert error["message"].startswith(param) or code != "invalid_request" or "." not in param
    if param == "kvstitch.topk":
        assert "top_k" in error["message"] and "question" not in error["message"]


def test_max_tokens_is_clamped_and_said(shared: Rig) -> None:
    found = chat(shared, max_tokens=100_000, stop=["e"]).json()
    assert "max_tokens was lowered from 100000" in found["kvstitch"]["warnings"][0]


def test_failure_of_the_worker_is_a_status_or_an_error_in_the_stream(rig: Rig) -> None:
    fake(rig).refuse = Failed("", "worker_fault", "the engine failed")
    assert chat(rig).status_code == 500
    first, error = frames(chat(rig, stream=True).text)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert error["error"]["message"] == "the engine failed"
    assert error["error"]["type"] == "server_error"
    fake(rig).refuse = Failed("", "overloaded", "the queue is full")
    busy = chat(rig)
    assert busy.status_code == 503 and busy.headers["retry-after"]
    assert busy.headers["x-should-retry"] == "true"


def test_silence_is_pinged_with_comments(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)
    body = {"messages": ASK, "max_tokens": 1, "stream": True}
    with (
        running(folder, data, worker=worker, stream_ping_s=0.1) as rig,
        rig.http.stream("POST", CHAT, json=body) as response,
    ):
        text = pinged(response.iter_lines(), worker)
    assert text.count(": ping\n\n") >= 2 and frames(text)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts(folder: Path, data: Path, stream: bool) -> None:
    body = {"messages": ASK, "max_tokens": 1000, "stream": stream}
    worker = FakeWorker("", held=True)
    with running(folder, data, worker=worker, stream_ping_s=0.1) as rig:
        if stream:
            with rig.http.stream("POST", CHAT, json=body) as response:
                next(response.iter_lines())
        else:
            with asking(rig, CHAT, body):
                until(lambda: worker.seen(Generate), "the worker has it")
        until(lambda: worker.seen(Abort), "abort")
        (abort,) = worker.seen(Abort)
        assert isinstance(abort, Abort) and abort.reason == "disconnect"
        until(lambda: rig.metric("kvstitch_requests_in_flight") == 0, "released")


def test_a_field_that_nobody_knows_is_warned_of(shared: Rig) -> None:
    """In the answer and in a header, which holds no other characters than ASCII's."""
    unknown = {"future\r\nSet-Cookie: é": 1, "stream_options": {"every": 1}}
    for path, body in ((CHAT, {"messages": ASK}), (TEXT, {"prompt": "Why?"}),
                       ("/v1/responses", {"input": "Why?"})):  # fmt: skip
        response = shared.http.post(path, json={**body, **unknown})
        told = response.headers["x-kvstitch-warnings"]
        assert response.status_code == 200 and "set-cookie" not in response.headers
        assert told == (
            "future??Set-Cookie: \\xe9 has no effect: nobody here knows it; "
            "stream_options.every has no effect: nobody here knows it"
        )
        assert len(response.json()["kvstitch"]["warnings"]) == 2
    vectors = shared.http.post("/v1/embeddings", json={"input": "a", "encoding_format": None,
                                                       "future": 1})  # fmt: skip
    assert vectors.headers["x-kvstitch-warnings"].startswith("future has no effect")
    assert "x-kvstitch-warnings" not in chat(shared).headers


def test_strict_fields_refuses_it(folder: Path, data: Path) -> None:
    with running(folder, data, strict_fields=True) as rig:
        rig.ingest()
        for path, body, param in (
            (CHAT, {"messages": ASK, "nobody": {"knows": [1]}}, "nobody"),
            (CHAT, {"messages": ASK, "stream_options": {"every": 1}}, "stream_options.every"),
            (CHAT, {"messages": ASK, "tools": [{"function": {"name": "f", "x": 1}}]},
             "tools[0].function.x"),
            ("/v1/responses", {"input": "Why?", "client_metadata": {}}, "client_metadata"),
            ("/v1/embeddings", {"input": "a", "nobody": 1}, "nobody"),
        ):  # fmt: skip
            error = rig.http.post(path, json=body).json()["error"]
            assert (error["param"], error["code"]) == (param, "invalid_request")
