"""The Responses API against a fake worker: objects, events and their order, refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kvstitch.service.messages.replies import Failed
from tests.service.gateway.http.routes.test_openai import fake, last_request, says
from tests.service.gateway.http.routes.test_openai_tools import CITY, NOON, OSLO
from tests.service.gateway.rig import Rig, events

QUESTION = "What is the capital of Norway?"
TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True},
    {"type": "function", "name": "clock"},
]


def post(rig: Rig, **body: Any) -> httpx.Response:
    return rig.http.post("/v1/responses", json={"model": "model", "input": QUESTION, **body})


def ask(rig: Rig, answer: str, **body: Any) -> dict[str, Any]:
    says(rig, answer)
    response = post(rig, **{"max_output_tokens": 500, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(rig: Rig, answer: str, **body: Any) -> list[dict[str, Any]]:
    says(rig, answer)
    asked = {"input": QUESTION, "stream": True, "max_output_tokens": 500, **body}
    with rig.http.stream("POST", "/v1/responses", json=asked) as response:
        assert response.status_code == 200, response.read()
        found = list(events(response))
    assert all(name == data["type"] for name, data in found)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    return [data for _, data in found]


def test_a_text(rig: Rig) -> None:
    rig.ingest()
    found = ask(rig, "Oslo", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert found["object"] == "response" and found["id"].startswith("resp_")
    assert found["status"] == "completed" and found["store"] is False
    assert found["metadata"] == {"a": "b"} and found["temperature"] == 0.5
    (item,) = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Oslo", "annotations": [], "logprobs": []}
    ]
    assert found["usage"]["output_tokens"] == 4
    assert found["usage"]["input_tokens_details"]["cached_tokens"] > 0
    assert found["kvstitch"]["citations"][0]["doc_id"] == "oslo"
    text = rig.gateway.prompts.tokenizer.decode(last_request(rig).question)
    assert text == f"Be brief.\nQuestion: {QUESTION}\nAnswer:"


def test_the_order_of_a_text_s_events(rig: Rig) -> None:
    rig.ingest()
    whole = ask(rig, "Oslo it is")
    first, second, *middle, last = streamed(rig, "Oslo it is")
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"]["status"] == "in_progress" and first["response"]["output"] == []
    kinds = [event["type"].removeprefix("response.") for event in middle]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert kinds[2] == "output_text.delta" and kinds[-4] == "output_text.delta"
    assert "".join(e["delta"] for e in middle if "delta" in e) == "Oslo it is"
    assert last["type"] == "response.completed"
    unlike = {"id", "created_at", "completed_at", "kvstitch", "output"}
    ended = last["response"]
    assert {k: v for k, v in ended.items() if k not in unlike} == {
        k: v for k, v in whole.items() if k not in unlike
    }
    assert ended["output"][0]["content"] == whole["output"][0]["content"]
    assert ended["kvstitch"]["citations"] == whole["kvstitch"]["citations"]


def test_calls_are_items(rig: Rig) -> None:
    found = ask(rig, f"Let me look.\n{OSLO}\n{NOON}", tools=TOOLS)
    message, *calls = found["output"]
    assert message["content"][0]["text"] == "Let me look."
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("get_weather", {"city": "Oslo"}),
        ("clock", {}),
    ]
    assert all(call["status"] == "completed" and call["type"] == "function_call" for call in calls)
    stream = streamed(rig, f"Let me look.\n{OSLO}\n{NOON}", tools=TOOLS)
    items = stream[-1]["response"]["output"]
    for number, item in enumerate(items):
        own = [event for event in stream if event.get("output_index") == number]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done" and own[-1]["item"] == item
        if number:
            pieces = [e["delta"] for e in own if e["type"].endswith("arguments.delta")]
            assert "".join(pieces) == item["arguments"] == own[-2]["arguments"]
            assert {e["item_id"] for e in own[1:-1]} == {item["id"]}
    assert [item.get("name") for item in items] == [None, "get_weather", "clock"]


def test_a_conversation_of_items(rig: Rig) -> None:
    call, output = ask(rig, OSLO, tools=TOOLS)["output"][0], "4 degrees"
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": QUESTION},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": output},
    ]
    found = ask(rig, "It is cold.", input=items, tools=TOOLS)
    text = rig.gateway.prompts.tokenizer.decode(last_request(rig).question)
    places = [text.index(part) for part in ("Be brief.", QUESTION, OSLO, output)]
    assert places == sorted(places)
    assert any("input[2] has no effect" in note for note in found["kvstitch"]["warnings"])
    items += [*found["output"], {"role": "user", "content": "And Rome?"}]
    assert ask(rig, "Warm.", input=items)["output"][0]["content"][0]["text"] == "Warm."


def test_forms_and_enforced_calls(rig: Rig) -> None:
    format = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    found = ask(rig, '{"city": "Oslo"}', text={"format": format})
    assert last_request(rig).sampling.grammar and found["text"]["format"]["schema"] == CITY
    ask(rig, OSLO, tools=TOOLS, tool_choice={"type": "function", "name": "get_weather"})
    assert "get_weather" in last_request(rig).sampling.grammar
    assert "clock" not in last_request(rig).sampling.grammar


def test_a_cut_answer_is_incomplete(rig: Rig) -> None:
    found = ask(rig, "Oslo it is", max_output_tokens=10)
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    last = streamed(rig, "Oslo it is", max_output_tokens=10)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_failure_in_a_stream_is_an_event(rig: Rig) -> None:
    fake(rig).refuse = Failed("", "worker_fault", "the engine failed")
    *_, error, failed = streamed(rig, "")
    assert error["type"] == "error" and error["message"] == "the engine failed"
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["message"] == "the engine failed"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported"),
        ({"conversation": "conv_1"}, "conversation", "unsupported"),
        ({"background": True}, "background", "unsupported"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
         "tool_choice", "unsupported"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_request"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0]", "unsupported"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported"),
        ({"input": []}, "input", "invalid_request"),
        ({"input": " "}, "input", "invalid_request"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema",
         "invalid_request"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}},
         "text.format.schema", "invalid_request"),
        ({"temperature": -1}, "temperature", "invalid_request"),
        ({"kvstitch": {"top_k": 9999}}, "kvstitch.top_k", "invalid_request"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_400_and_named(
    shared: Rig, body: dict[str, Any], param: str, code: str
) -> None:
    response = post(shared, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), response.text


def test_what_has_no_effect_is_named(shared: Rig) -> None:
    found = post(shared, store=True, user="u", reasoning={"effort": "low"}).json()
    warnings = found["kvstitch"]["warnings"]
    assert {w.partition(" has no effect")[0] for w in warnings} == {"store", "user", "reasoning"}
