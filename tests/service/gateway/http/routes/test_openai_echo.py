"""Conversations as clients send them on: what an answer holds comes back, and how it may end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.gateway.http.routes.test_openai import ASK, CHAT, chat, last_request, says
from tests.service.gateway.http.routes.test_openai_tools import OSLO, TOOLS, ask
from tests.service.gateway.model_folders import BOS, EOS, make_folder
from tests.service.gateway.rig import Rig, running
from tests.service.gateway.tool_calls.templates import HERMES

AGAIN = {"role": "user", "content": "And of Italy?"}


def prompt(rig: Rig) -> str:
    """What the worker got behind the documents."""
    return rig.gateway.prompts.tokenizer.decode(last_request(rig).question)


def accepted(rig: Rig, messages: list[dict[str, Any]], **body: Any) -> list[str]:
    """What an answer to these messages says about them."""
    response = chat(rig, messages=messages, **body)
    assert response.status_code == 200, response.text
    return [text for text in response.json()["kvstitch"]["warnings"] if "messages[" in text]


@pytest.mark.parametrize("cut", range(1, len(OSLO), 7))
def test_whatever_an_answer_holds_may_be_sent_back(shared: Rig, cut: int) -> None:
    """Also a call that was cut short, and an answer without text or calls."""
    message = ask(shared, OSLO[:cut], max_tokens=max(1, cut - 1))["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "4 degrees"}
        for call in message.get("tool_calls", [])
    ]
    accepted(shared, [*ASK, message, *results, AGAIN], tools=TOOLS)
    bare = {name: value for name, value in message.items() if value}
    accepted(shared, [*ASK, bare, *results, AGAIN])


def test_a_cut_call_is_told_as_far_as_it_goes(rig: Rig) -> None:
    function = {"name": "clock", "arguments": '{"city": "Os'}
    call = {"id": "1", "type": "function", "function": function}
    answer = {"role": "assistant", "tool_calls": [call]}
    (warning,) = accepted(rig, [*ASK, answer, AGAIN])
    assert warning.startswith("messages[1].tool_calls[0].function.arguments is no whole JSON")
    assert '{"name": "clock", "arguments": {"city": "Os"}}' in prompt(rig)


def test_fields_of_messages_that_nobody_knows_are_named(rig: Rig) -> None:
    """LiteLLM, OpenRouter and others put their own into what clients send back."""
    call: dict[str, Any] = {"id": "1", "type": "function", "index": 0, "extra_content": {"a": 1},
                            "function": {"name": "clock", "arguments": "{}", "x": 1}}  # fmt: skip
    answer = {"role": "assistant", "id": "chatcmpl-1", "provider_specific_fields": {"a": 1},
              "thinking_blocks": None, "images": [], "tool_calls": [call]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "noon",
              "z": 1}], "status": "success"}  # fmt: skip
    warnings = accepted(rig, [*ASK, answer, result, {**AGAIN, "timestamp": 5}])
    assert [text.partition(" has no effect")[0] for text in warnings] == [
        "messages[1].id",
        "messages[1].provider_specific_fields",
        "messages[1].tool_calls[0].extra_content",
        "messages[1].tool_calls[0].function.x",
        "messages[2].status",
        "messages[2].content[0].z",
        "messages[3].timestamp",
    ]


def test_items_of_a_response_may_be_sent_back(rig: Rig) -> None:
    says(rig, "")
    body: dict[str, Any] = {"model": "model", "input": "What is the capital of Norway?"}
    empty = rig.http.post("/v1/responses", json=body).json()["output"]
    says(rig, f"Let me look. {OSLO[:-30]}")
    flat: list[Any] = [{"type": "function"} | dict(tool["function"]) for tool in TOOLS]  # type: ignore[arg-type]
    cut = len(f"Let me look. {OSLO[:-30]}") - 1
    sent = {**body, "tools": flat, "max_output_tokens": cut}
    called = rig.http.post("/v1/responses", json=sent).json()["output"]
    assert [item["type"] for item in called] == ["message", "function_call"]
    output = {"type": "function_call_output", "call_id": called[1]["call_id"], "output": "cold"}
    items = [{"role": "user", "content": body["input"]}, *empty, *called, output]
    items += [{"role": "user", "content": "And Rome?", "nobody": 1}]
    response = rig.http.post("/v1/responses", json={**body, "input": items})
    assert response.status_code == 200, response.text
    assert any(
        "input[5].nobody has no effect" in w for w in response.json()["kvstitch"]["warnings"]
    )


@pytest.fixture(params=["own", "template"])
def either(request: pytest.FixtureRequest, tmp_path: Path, data: Path) -> Any:
    """A model with a format of its own, or with a chat template that knows tools."""
    config = {"bos_token": BOS, "eos_token": EOS, "add_bos_token": True, "chat_template": HERMES}
    own: dict[str, Any] = (
        {} if request.param == "own" else {"fmt": None, "tokenizer_config": config}
    )
    with running(make_folder(tmp_path / "model", **own), data) as rig:
        rig.ingest()
        yield rig


def test_a_system_message_that_is_last_says_what_is_to_be_done_now(either: Rig) -> None:
    """AutoGen, Semantic Kernel and others steer the next answer so."""
    now: dict[str, Any] = {"role": "system", "content": "Answer in one word."}
    said = {"role": "assistant", "content": "Oslo."}
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    called: dict[str, Any] = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "noon"}
    first = {"role": "system", "content": "Be kind."}
    conversations: list[list[dict[str, Any]]] = [
        [first, *ASK],
        [*ASK, said, AGAIN],
        [*ASK, said],
        [*ASK, called, result],
    ]
    for before in conversations:
        for more in ({}, {"tools": TOOLS}, {"kvstitch": {"top_k": 0}}):
            response = chat(either, messages=[*before, now], **more)
            assert response.status_code == 200, response.text
            text = prompt(either)
            assert text.index(before[-1]["content"]) < text.index("Answer in one word.")
            retrieval = response.json()["kvstitch"]["retrieval"]
            assert "one word" not in str(retrieval)  # documents are searched for the user's words
    alone = chat(either, messages=[first, {"role": "system", "content": "Greet the user."}])
    assert alone.json()["kvstitch"]["retrieval"]["query"] == "Greet the user."


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}, {"kvstitch": {"top_k": 0}}])
def test_an_answer_can_be_continued(either: Rig, more: dict[str, Any]) -> None:
    begun = {"role": "assistant", "content": "The capital is Os"}
    messages = [{"role": "system", "content": "Be kind."}, *ASK, begun]
    says(either, "lo, by the fjord")
    for added, text in (("", "lo, by the fjord"), (" and", " now")):
        says(either, text)
        going_on = [*messages[:-1], {**begun, "content": begun["content"] + added}]
        response = chat(either, messages=going_on, continue_final_message=True,
                        add_generation_prompt=False, **more)  # fmt: skip
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == text  # blanks and all
        assert prompt(either).endswith(begun["content"] + added)
        assert response.json()["kvstitch"]["retrieval"] or "kvstitch" in more
    refused = chat(either, messages=messages, **more)
    assert refused.status_code == 400 and "continue_final_message" in refused.text


def test_own_route_continues_too(rig: Rig) -> None:
    rig.ingest()
    messages = [*ASK, {"role": "assistant", "content": "It is"}]
    says(rig, " Oslo")
    response = rig.ask(question=None, messages=messages, continue_final_message=True)
    assert response.json()["text"] == " Oslo" and prompt(rig).endswith("Answer: It is")
    assert rig.http.post(CHAT, json={"messages": messages}).status_code == 400
