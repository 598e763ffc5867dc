"""/v1/messages against a fake worker: messages, events and their order, tools, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.messages.requests import Generate
from kvstitch_messages.route import COUNT, MESSAGES
from kvstitch_messages.schemas import MessagesRequest
from tests.service.gateway.http.routes.test_openai import ASK, fake, last_request, says
from tests.service.gateway.http.routes.test_openai_tools import CITY, NOON, OSLO, prompt
from tests.service.gateway.rig import Rig, events, running

TOOLS = [
    {"name": "get_weather", "description": "Tells the weather.", "input_schema": CITY},
    {"type": "custom", "name": "clock", "input_schema": {"type": "object"}},
]
USED = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}


def post(rig: Rig, **body: Any) -> httpx.Response:
    return rig.http.post(MESSAGES, json={"max_tokens": 500, "messages": ASK, **body})


def ask(rig: Rig, answer: str, **body: Any) -> dict[str, Any]:
    says(rig, answer)
    response = post(rig, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(rig: Rig, answer: str, **body: Any) -> list[dict[str, Any]]:
    says(rig, answer)
    asked = {"max_tokens": 500, "messages": ASK, "stream": True, **body}
    with rig.http.stream("POST", MESSAGES, json=asked) as response:
        assert response.status_code == 200, response.read()
        found = list(events(response))
    assert all(name == data["type"] for name, data in found)
    return [data for _, data in found]


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The events' types, equal neighbours once."""
    named = [event["type"] for event in found]
    return [one for at, one in enumerate(named) if one != named[at - 1] or not at]


def refused(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found = response.json()
    assert found["type"] == "error" and found["error"]["type"] == kind, found
    error: dict[str, Any] = found["error"]
    return error


def test_a_message(rig: Rig) -> None:
    rig.ingest()
    found = ask(rig, "Oslo", model="model", system="Be brief.", temperature=0.5, top_k=40)
    assert found.pop("id").startswith("msg_")
    usage, details = found.pop("usage"), found.pop("kvstitch")
    assert found == {
        "type": "message", "role": "assistant", "model": "model",
        "content": [{"type": "text", "text": "Oslo", "citations": None}],
        "stop_reason": "end_turn", "stop_sequence": None,
    }  # fmt: skip
    assert usage["output_tokens"] == 4 and usage["cache_creation_input_tokens"] == 0
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *ASK]}
    theirs = rig.http.post("/v1/chat/completions", json=chat).json()["usage"]
    assert usage["cache_read_input_tokens"] == theirs["prompt_tokens_details"]["cached_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == theirs["prompt_tokens"]
    assert details["citations"][0]["doc_id"] == "oslo" and details["warnings"] == []
    asked = fake(rig).seen(Generate)[-2]
    assert isinstance(asked, Generate)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 40, 500)
    assert prompt(rig) == f"Be brief.\nQuestion: {ASK[0]['content']}\nAnswer:"


def test_a_stream(rig: Rig) -> None:
    rig.ingest()
    whole = ask(rig, "Oslo it is")
    found = streamed(rig, "Oslo it is")
    assert kinds(found) == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    start, last = found[0]["message"], found[-2]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] > 0 and start["usage"]["output_tokens"] == 0
    assert start["kvstitch"]["citations"][0]["doc_id"] == "oslo"
    assert found[1]["content_block"] == {"type": "text", "text": "", "citations": None}
    assert "".join(e["delta"]["text"] for e in found[2:-3]) == "Oslo it is"
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert last["kvstitch"]["timing"]["ttft_s"] > 0


def test_why_an_answer_ends(rig: Rig) -> None:
    rig.ingest()
    for body, why, sequence in (
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["never", " is"]}, "stop_sequence", " is"),
        ({"stop_sequences": ["is", "it"]}, "stop_sequence", "it"),
        ({}, "end_turn", None),
    ):
        found = ask(rig, "Oslo it is", **body)
        assert (found["stop_reason"], found["stop_sequence"]) == (why, sequence)
        delta = streamed(rig, "Oslo it is", **body)[-2]["delta"]
        assert delta == {"stop_reason": why, "stop_sequence": sequence}


def test_calls(rig: Rig) -> None:
    rig.ingest()
    found = ask(rig, f"Let me look.\n{OSLO}\n{NOON}", tools=TOOLS)
    said, first, second = found["content"]
    assert said["text"] == "Let me look." and found["stop_reason"] == "tool_use"
    assert first.pop("id").startswith("toolu_")
    assert first == {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}}
    assert (second["name"], second["input"]) == ("clock", {})
    events_ = streamed(rig, f"Let me look.\n{OSLO}\n{NOON}", tools=TOOLS)
    starts = [e["content_block"] for e in events_ if e["type"] == "content_block_start"]
    assert [s["type"] for s in starts] == ["text", "tool_use", "tool_use"]
    assert [e["index"] for e in events_ if e["type"] == "content_block_stop"] == [0, 1, 2]
    parts = [e["delta"]["partial_json"] for e in events_ if e.get("index") == 1 and "delta" in e]
    assert json.loads("".join(parts)) == {"city": "Oslo"} and starts[1]["input"] == {}
    assert events_[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_is_one_with_what_there_is(rig: Rig) -> None:
    cut = OSLO[: OSLO.index('lo"')]
    found = ask(rig, cut, tools=TOOLS, max_tokens=len(cut) - 1)
    (call,) = found["content"]
    assert found["stop_reason"] == "max_tokens"
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Os"})
    parts = streamed(rig, cut, tools=TOOLS, max_tokens=len(cut) - 1)
    said = [e["delta"].get("partial_json", "") for e in parts if "delta" in e]
    assert "".join(said) == '{"city": "Os'


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ({"type": "auto"}, 2),
        ({"type": "auto", "disable_parallel_tool_use": True}, 1),
        ({"type": "none"}, 0),
    ],
)
def test_how_many_calls(rig: Rig, choice: dict[str, Any], calls: int) -> None:
    found = ask(rig, f"{OSLO}\n{NOON}", tools=TOOLS, tool_choice=choice)
    assert sum(block["type"] == "tool_use" for block in found["content"]) == calls


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_be(rig: Rig, choice: dict[str, Any]) -> None:
    ask(rig, OSLO, tools=TOOLS, tool_choice=choice)
    held = str(last_request(rig).sampling)
    assert "args0" in held and ("args1" in held) == (choice["type"] == "any")


def test_results_go_back_to_the_model(rig: Rig) -> None:
    rig.ingest()
    said = [
        *ASK,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "x"},
                                          {"type": "text", "text": "Let me look."}, USED]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1",
             "content": [{"type": "text", "text": "4 degrees"}, {"type": "text", "text": "rain"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
            {"type": "text", "text": "And what is the capital?",
             "cache_control": {"type": "ephemeral"}},
        ]},
    ]  # fmt: skip
    found = ask(rig, "Oslo", messages=said, tools=TOOLS)
    text = prompt(rig)
    assert (
        text.index("Let me look.") < text.index('{"city": "Oslo"}') < text.index("4 degrees\nrain")
    )
    assert text.index("Error: no") < text.index("And what is the capital?") and "Hm" not in text
    assert found["kvstitch"]["retrieval"]["query"].endswith("And what is the capital?")
    assert found["kvstitch"]["warnings"] == [
        "messages[1].content[0] has no effect: earlier thoughts are left out",
        "messages[2].content[2].cache_control has no effect: prompts are cached by their tokens",
    ]
    again = [*said, {"role": "assistant", "content": found["content"]}, *ASK]
    assert post(rig, messages=again, tools=TOOLS).status_code == 200, "what came goes back"


def test_the_beginning_of_the_answer(rig: Rig) -> None:
    rig.ingest()
    begun = [*ASK, {"role": "assistant", "content": "The capital is"}]
    assert ask(rig, " Oslo", messages=begun)["content"][0]["text"] == " Oslo"
    assert prompt(rig).endswith("The capital is")


def test_an_answer_of_a_form(rig: Rig) -> None:
    form = {"type": "json_schema", "schema": CITY}
    found = ask(rig, '{"city": "Oslo"}', output_config={"format": form, "effort": "low"})
    assert json.loads(found["content"][0]["text"]) == {"city": "Oslo"}
    assert "city" in str(last_request(rig).sampling)
    assert found["kvstitch"]["warnings"][0].startswith("output_config.effort has no effect")


def test_null_is_absent_and_what_nobody_knows_is_told(shared: Rig) -> None:
    names = MessagesRequest.model_fields.keys() - {"messages", "max_tokens"}
    plain = dict.fromkeys([*names, "thinking", "metadata", "nobody"])
    reply = post(shared, **plain)
    assert reply.status_code == 200 and reply.json()["kvstitch"]["warnings"] == []
    odd = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "me"}}
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    reply = post(shared, **odd, frobnicate=1, tools=tools)
    assert reply.status_code == 200
    named = [w.partition(" has no effect: ")[0] for w in reply.json()["kvstitch"]["warnings"]]
    assert named == ["thinking", "metadata", "frobnicate", "tools[0]"]
    assert "frobnicate has no effect" in reply.headers["x-kvstitch-warnings"]
    old = shared.http.post(MESSAGES, json={"messages": ASK}, headers={"anthropic-version": "2099"})
    assert "anthropic-version" in old.headers["x-kvstitch-warnings"]


def test_documents_are_chosen_as_elsewhere(shared: Rig) -> None:
    found = ask(shared, "Oslo", kvstitch={"documents": ["rome"], "include_text": True})
    assert [c["doc_id"] for c in found["kvstitch"]["citations"]] == ["rome"]
    assert "citations" not in ask(shared, "x", kvstitch={"include_citations": False})["kvstitch"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"model": "claude-opus-5"}, "model"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
        ({"tool_choice": {"type": "tool", "name": "nobody"}, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].name"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [USED]}]}, "messages[0].content[0]"),
        ({"kvstitch": {"nobody": 1}}, "kvstitch.nobody"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_what_is_refused_says_so_as_anthropic_does(
    shared: Rig, path: str, body: dict[str, Any], param: str
) -> None:
    reply = shared.http.post(path, json={"max_tokens": 9, "messages": ASK, **body})
    kind = "not_found_error" if param == "model" else "invalid_request_error"
    error = refused(reply, 404 if param == "model" else 400, kind)
    assert error["param"] == param and param.split("[")[0] in error["message"]


def test_keys(folder: Path, data: Path, create: Callable[..., str]) -> None:
    with running(folder, data) as rig:
        key = create("--scope", "generate")
        other = create("--scope", "ingest")
        refused(post(rig), 401, "authentication_error")
        for headers, status in (
            ({"x-api-key": key}, 200),
            ({"Authorization": f"Bearer {key}"}, 200),
            ({"x-api-key": other}, 403),
        ):
            for path in (MESSAGES, COUNT):
                reply = rig.http.post(path, json={"messages": ASK}, headers=headers)
                assert reply.status_code == status, reply.text
        assert reply.json()["error"]["type"] == "permission_error"


def test_faults(rig: Rig) -> None:
    rig.ingest()
    long = [{"role": "user", "content": "word " * 20_000}]
    error = refused(post(rig, messages=long), 400, "invalid_request_error")
    assert error["message"].startswith("prompt is too long: ")
    reply = rig.http.post(MESSAGES, content=b"{", headers={"Content-Type": "application/json"})
    refused(reply, 400, "invalid_request_error")
    refused(rig.http.get(MESSAGES), 405, "invalid_request_error")
    rig.lose_worker()
    reply = post(rig)
    refused(reply, 503, "overloaded_error")
    assert int(reply.headers["retry-after"]) >= 1


def test_tokens_are_counted(shared: Rig) -> None:
    reply = shared.http.post(COUNT, json={"messages": ASK, "system": "Be brief.", "tools": TOOLS})
    assert reply.status_code == 200, reply.text
    usage = ask(shared, "Oslo", system="Be brief.", tools=TOOLS)["usage"]
    assert reply.json() == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]
    }
