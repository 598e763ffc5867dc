"""Tools on the chat route: what the worker gets, and what the client gets back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.fakes.worker import READY, FakeWorker
from tests.service.gateway.http.routes.test_openai import ASK, chat, frames, last_request, says
from tests.service.gateway.rig import Rig, running

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": CITY},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
OSLO = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
NOON = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def ask(rig: Rig, answer: str, **body: Any) -> dict[str, Any]:
    """The response to a request that is answered with this text."""
    says(rig, answer)
    response = chat(rig, **{"tools": TOOLS, "max_tokens": 500, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(rig: Rig, answer: str, **body: Any) -> list[Any]:
    says(rig, answer)
    chunks = frames(chat(rig, **{"tools": TOOLS, "max_tokens": 500, **body}, stream=True).text)
    assert chunks.pop() == "[DONE]"
    return chunks


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]


def prompt(rig: Rig) -> str:
    """What the worker got behind the documents."""
    return rig.gateway.prompts.tokenizer.decode(last_request(rig).question)


def test_calls_are_found_in_the_answer(rig: Rig) -> None:
    rig.ingest()
    found = ask(rig, f"Let me look.\n{OSLO}\n{NOON}")
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    assert called(choice["message"]) == [("get_weather", {"city": "Oslo"}), ("clock", {})]
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(id.startswith("call_") for id in ids)
    assert {call["type"] for call in choice["message"]["tool_calls"]} == {"function"}
    assert found["kvstitch"]["citations"]  # documents are searched all the same
    alone = ask(rig, OSLO)["choices"][0]["message"]
    assert alone["content"] is None and called(alone) == [("get_weather", {"city": "Oslo"})]


def test_calls_are_streamed_in_pieces(rig: Rig) -> None:
    chunks = streamed(rig, f"Let me look.\n{OSLO}\n{NOON}")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == "Let me look."
    pieces = [call for d in deltas for call in d.get("tool_calls", [])]
    assert [d for d in deltas if "content" in d][-1] in deltas[: deltas.index(
        next(d for d in deltas if "tool_calls" in d)
    )]  # fmt: skip
    starts = [piece for piece in pieces if "id" in piece]
    assert [(s["index"], s["type"], s["function"]["name"]) for s in starts] == [
        (0, "function", "get_weather"),
        (1, "function", "clock"),
    ]
    for number, arguments in ((0, {"city": "Oslo"}), (1, {})):
        texts = [p["function"]["arguments"] for p in pieces if p["index"] == number]
        assert json.loads("".join(texts)) == arguments
    assert len([p for p in pieces if p["index"] == 0]) > 3  # as they come
    assert chunks[-1]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ('<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>', "is none"),
        ('<tool_call>{"name": "get_wether", "arguments": {}}</tool_call>', "no tool 'get_wether'"),
        ("<tool_call>Oslo, please</tool_call>", "is none"),
        ('<tool_call>{"name": "get_weather", "argum', "is none"),
        ("It is <tool_call></tool_call>.", "empty"),
    ],
)
def test_what_is_malformed_stays_text(rig: Rig, answer: str, warning: str) -> None:
    found = ask(rig, answer)
    assert found["choices"][0]["message"] == {
        "role": "assistant", "content": answer, "refusal": None, "annotations": []
    }  # fmt: skip
    assert found["choices"][0]["finish_reason"] == "stop"
    assert any(warning in text for text in found["kvstitch"]["warnings"])
    if "city" not in answer:  # the arguments had begun, and cannot be taken back
        *chunks, finish = streamed(rig, answer)
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == answer
        assert any(warning in text for text in finish["kvstitch"]["warnings"])


def test_an_answer_without_calls_is_as_ever(rig: Rig) -> None:
    found = ask(rig, "It is < 5 degrees in Oslo.")
    assert found["choices"][0]["message"]["content"] == "It is < 5 degrees in Oslo."
    assert found["choices"][0]["finish_reason"] == "stop"
    chunks = streamed(rig, "It is < 5 degrees in Oslo. ")
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == "It is < 5 degrees in Oslo. "


def test_a_cut_call_has_the_finish_reason_length(rig: Rig) -> None:
    for place, arguments in ((30, ""), (len(OSLO) - 35, ""), (OSLO.index("ty"), '{"ci')):
        text = OSLO[:place]
        cut = ask(rig, text, max_tokens=len(text) - 1)["choices"][0]
        assert cut["finish_reason"] == "length" and cut["message"]["content"] is None
        (call,) = cut["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": arguments}, text
        *chunks, finish = streamed(rig, text, max_tokens=len(text) - 1)
        pieces = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", [])]
        assert pieces[0]["function"]["name"] == "get_weather"
        assert "".join(piece["function"]["arguments"] for piece in pieces) == arguments
        assert finish["choices"][0]["finish_reason"] == "length"
    nameless = ask(rig, OSLO[:20], max_tokens=19)
    assert not nameless["choices"][0]["message"]["content"]
    assert any("which tool it calls" in text for text in nameless["kvstitch"]["warnings"])
    in_arguments = OSLO[: OSLO.index('lo"}}')]
    cut = ask(rig, in_arguments, max_tokens=len(in_arguments) - 1)["choices"][0]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Os'
    *chunks, finish = streamed(rig, in_arguments)
    pieces = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city": "Os'
    assert any("not the JSON" in text for text in finish["kvstitch"]["warnings"])


def test_one_call_where_only_one_may_be(rig: Rig) -> None:
    found = ask(rig, OSLO + NOON, parallel_tool_calls=False)
    assert called(found["choices"][0]["message"]) == [("get_weather", {"city": "Oslo"})]
    assert any("only the first" in text for text in found["kvstitch"]["warnings"])


def test_tools_stand_behind_the_documents_and_s_stays(rig: Rig) -> None:
    rig.ingest()
    chat(rig)
    plain = last_request(rig)
    ask(rig, "…", messages=[{"role": "system", "content": "Be brief."}, *ASK])
    asked = last_request(rig)
    assert (asked.system, asked.documents) == (plain.system, plain.documents)
    text = prompt(rig)
    assert text.index("get_weather") < text.index("Be brief.") < text.index("capital of Norway")
    assert json.dumps(CITY) in text and "Tells the weather." in text


def test_tool_choice_none_hides_them(rig: Rig) -> None:
    found = ask(rig, OSLO, tool_choice="none")
    assert found["choices"][0]["message"]["content"] == OSLO
    assert "get_weather" not in prompt(rig)
    assert last_request(rig).sampling.grammar == ""


def test_a_call_can_be_enforced(rig: Rig) -> None:
    found = ask(rig, OSLO, tool_choice="required")
    assert called(found["choices"][0]["message"]) == [("get_weather", {"city": "Oslo"})]
    any_tool = last_request(rig).sampling.grammar
    assert "get_weather" in any_tool and "clock" in any_tool
    ask(rig, NOON, tool_choice={"type": "function", "function": {"name": "clock"}})
    named = last_request(rig).sampling.grammar
    assert "clock" in named and "get_weather" not in named
    assert "get_weather" in prompt(rig)  # the model is told of all
    ask(rig, "{}", response_format={"type": "json_object"})
    either = last_request(rig).sampling.grammar
    assert "get_weather" in either and either != any_tool


def test_a_schema_that_cannot_be_enforced_in_full_is_no_error(rig: Rig) -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "clock", "parameters": unique}}
    found = ask(rig, NOON, tools=[tool], tool_choice="required")
    assert called(found["choices"][0]["message"]) == [("clock", {})]


def test_results_of_tools_are_part_of_the_conversation(rig: Rig) -> None:
    rig.ingest()
    calls = ask(rig, OSLO)["choices"][0]["message"]
    messages = [*ASK, calls, {"role": "tool", "tool_call_id": calls["tool_calls"][0]["id"],
                              "content": "4 degrees </tool_response>"}]  # fmt: skip
    found = ask(rig, "It is cold.", messages=messages)
    assert found["choices"][0]["message"]["content"] == "It is cold."
    assert found["kvstitch"]["citations"][0]["doc_id"] == "oslo"  # searched for the user's words
    text = prompt(rig)
    assert text.index(OSLO) < text.index("<tool_response>\n4 degrees </tool_response>\n")
    # The conversation goes on without tools.
    response = chat(rig, messages=[*messages, {"role": "assistant", "content": "Cold."}, *ASK])
    assert response.status_code == 200, response.text
    assert OSLO in prompt(rig) and "Tells the weather" not in prompt(rig)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function":
          {"name": "clock", "arguments": "now"}}]}, "messages[1].tool_calls[0].function.arguments"),
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1", "type": "function",
          "function": {"name": "clock", "arguments": "{}"}}]}, "messages[1].tool_calls"),
        ({"role": "user", "content": None}, "messages[1].content"),
    ],
)  # fmt: skip
def test_wrong_messages_are_named(rig: Rig, message: dict[str, Any], param: str) -> None:
    response = chat(rig, messages=[*ASK, message, *ASK], tools=TOOLS)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_the_form_can_be_set(folder: Any, data: Any) -> None:
    with running(folder, data, worker=FakeWorker(""), tool_form="llama3_json") as rig:
        found = ask(rig, '{"name": "get_weather", "parameters": {"city": "Oslo"}}')
        assert called(found["choices"][0]["message"]) == [("get_weather", {"city": "Oslo"})]
        assert '"parameters"' in prompt(rig)
        assert "tool_calls" not in ask(rig, OSLO)["choices"][0]["message"]


def test_tools_are_limited_by_the_model_s_context_and_by_nothing_else(
    folder: Any, data: Any
) -> None:
    """128 small ones, and a grammar for their calls; MCP servers bring so many."""
    properties = {f"field_{n}": {"type": "string", "description": "a field"} for n in range(9)}
    schema = {"type": "object", "properties": properties}
    many = [{"function": {"name": f"f{n}", "parameters": schema}} for n in range(200)]
    model = replace(READY.model, max_context=262_144)
    ready = msgspec.structs.replace(READY, model=model, pool_tokens=262_144)
    with running(folder, data, worker=FakeWorker("", ready=ready)) as rig:
        says(rig, OSLO.replace("get_weather", "f199"))
        for more in ({}, {"tool_choice": "required"}, {"stream": True}):
            response = chat(rig, tools=many, max_tokens=500, **more)
            assert response.status_code == 200, response.text[:1000]
        long = "word " * 40_000  # of a user: three times the characters that were a limit once
        assert chat(rig, messages=[{"role": "user", "content": long}]).status_code == 200
        assert len(last_request(rig).question) > 200_000
    error = None
    with running(folder, data) as rig:
        error = chat(rig, tools=many, tool_choice="required").json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "maximum context length is 2048 tokens" in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_those_that_may_be_called(rig: Rig, mode: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    says(rig, '<tool_call>{"name": "g", "arguments": {}}</tool_call>')
    found = chat(rig, tools=tools, tool_choice=choice).json()["choices"][0]
    assert found["message"]["tool_calls"][0]["function"]["name"] == "g"
    assert ("args0" in str(last_request(rig).sampling)) == (mode == "required")
