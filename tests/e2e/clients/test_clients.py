"""Client libraries, unmodified and each in a process of its own, against a live service."""

from __future__ import annotations

import json

import pytest

from tests.e2e.clients.conftest import RunClient

pytestmark = pytest.mark.slow
CITIES = ({"city": "Oslo"}, {"city": "Rome"})
ANIMALS = ("goat", "cow")


def test_openai(run_python: RunClient) -> None:
    found = run_python("openai_client.py")
    assert found["chat"] == "goat" and found["n"] == ["goat", "goat"]
    reason, arguments = found["call"]
    assert reason == "tool_calls" and json.loads(arguments) in CITIES
    assert found["after"] in ("stop", "length")
    delta, done, reason, arguments = found["stream"]
    assert delta and done and reason == "tool_calls" and json.loads(arguments) in CITIES
    assert found["parsed"] in ANIMALS
    assert found["response"] == ["completed", "goat", True]
    assert found["response_stream"] == ["response.created", "response.completed", "goat"]
    assert found["response_parsed"] in ANIMALS
    kind, arguments = found["response_call"]
    assert kind == "function_call" and json.loads(arguments) in CITIES
    assert found["response_after"] in ("completed", "incomplete")


def test_openai_for_node(run_node: RunClient) -> None:
    found = run_node("openai_node.mjs")
    assert found["models"] and found["chat"] == found["stream"] == "goat"
    assert json.loads(found["call"]) in CITIES and found["parsed"] in ANIMALS
    assert found["response"] == found["responseStream"] == "goat"
    assert found["responseParsed"] in ANIMALS


def test_langchain(run_python: RunClient) -> None:
    found = run_python("langchain_client.py")
    assert found["chat"] == found["stream"] == found["responses"] == "goat"
    for name, arguments in (found["call"], found["streamed_call"]):
        assert name == "get_weather" and arguments in CITIES
    assert found["json_schema"] in ANIMALS and found["function_calling"] in ANIMALS
    assert found["agent"] == "AIMessage"


def test_llama_index(run_python: RunClient) -> None:
    found = run_python("llama_index_client.py")
    assert found["chat"] == found["stream"] == "goat"
    name, arguments = found["call"]
    assert name == "get_weather" and arguments in CITIES
    assert found["structured"] in ANIMALS


def test_litellm(run_python: RunClient) -> None:
    found = run_python("litellm_client.py")
    assert found["chat"] == found["text"] == "goat" and found["stream"] == ["goat", True]
    name, arguments = found["call"]
    assert name == "get_weather" and arguments in CITIES
    assert found["structured"] in ANIMALS


def test_pydantic_ai(run_python: RunClient) -> None:
    found = run_python("pydantic_ai_client.py")
    assert found["chat"] == found["responses"] == "goat"
    for kind in ("by_tool", "by_schema", "responses_by_tool"):
        assert found[kind] in ANIMALS


def test_agents_over_mcp(run_python: RunClient) -> None:
    found = run_python("mcp_agents.py")
    assert found["pydantic_ai"] == ["goat [1]", "quentin"]
    assert found["agents"] == [["search", "ask", "documents"], "goat [1]", "quentin"]


def test_instructor(run_python: RunClient) -> None:
    found = run_python("instructor_client.py")
    assert found["TOOLS"] in ANIMALS and found["JSON_SCHEMA"] in ANIMALS


def test_openai_s_agents(run_python: RunClient) -> None:
    found = run_python("agents_client.py")
    for kind in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel"):
        assert found[kind] == ["goat", "4 degrees", "goat"]
