"""Tools and several answers with a real worker, and a model whose chat template takes tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.gateway.prompts.model_folder import ChatTemplate, ModelFolder
from kvstitch.service.gateway.prompts.tokenizer import ServingTokenizer
from tests.e2e.conftest import Documents
from tests.e2e.models import tiny
from tests.e2e.service import Service
from tests.service.gateway.tool_calls.templates import HERMES

QUESTION = "Which colour does the family wear?"
ASK = [{"role": "user", "content": QUESTION}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.",
                                         "parameters": CITY}}  # fmt: skip
NO_DOCUMENTS = {"top_k": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, corpus: Documents) -> Path:
    """A random model without a prompt format of its own."""
    texts = [document["text"] for document in corpus]
    made = tiny(tmp_path_factory.mktemp("tools") / "tools", texts, context=4096)
    (made / "kvstitch.json").unlink()
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
    (made / "chat_template.jinja").write_text(HERMES)
    return made


@pytest.fixture(scope="module")
def tools(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, twelve: Documents
) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("tools-data") / "data"
    with Service(folder, data, prefix_cache=True) as service:
        service.ingest(twelve[:3])
        yield service


def chat(service: Service, **body: Any) -> dict[str, Any]:
    response = service.http.post("/v1/chat/completions", json={"messages": ASK, **body})
    assert response.status_code == 200, (response.text, service.log())
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("method", ["vanilla", "question_scout", "a3", "pie"])
def test_a_prompt_without_documents_is_the_template_s_own(
    tools: Service, folder: Path, method: str
) -> None:
    """S is empty then, with every method; all of them compute the same."""
    extension = {**NO_DOCUMENTS, "fusion": {"method": method}, "prefix_cache": False}
    asked = {"tools": [TOOL], "max_tokens": 12, "ignore_eos": True}
    found = chat(tools, **asked, kvstitch=extension)
    files = ModelFolder(folder)
    written = ChatTemplate(HERMES, files).render(ASK, [TOOL])
    expected = ServingTokenizer(files).encode_template(written)
    assert found["usage"]["prompt_tokens"] == len(expected)
    assert found["kvstitch"]["cache"]["system"]["tokens"] == 0
    assert found["usage"]["completion_tokens"] == 12
    reference = chat(tools, **asked, kvstitch={**extension, "fusion": {"method": "vanilla"}})
    assert found["choices"] == reference["choices"]


def test_s_is_reused_where_tools_stand_behind_documents(tools: Service) -> None:
    plain = chat(tools, max_tokens=4, kvstitch={"prefix_cache": False})
    asked = chat(tools, tools=[TOOL], max_tokens=4, kvstitch={"prefix_cache": False})
    for found in (plain, asked):
        cache = found["kvstitch"]["cache"]
        assert cache["system"]["tokens"] == plain["kvstitch"]["cache"]["system"]["tokens"] > 0
        assert {document["tier"] for document in cache["documents"]} == {"memory"}
    assert asked["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize("extension", [{}, NO_DOCUMENTS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_random_model_calls_if_it_must(
    tools: Service, extension: dict[str, Any], stream: bool
) -> None:
    body = {
        "tools": [TOOL],
        "tool_choice": "required",
        "temperature": 1.0,
        "seed": 7,
        "n": 3,
        "kvstitch": extension,
    }
    if not stream:
        for choice in chat(tools, **body)["choices"]:
            assert choice["finish_reason"] == "tool_calls"
            (call,) = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
        return
    arguments = {0: "", 1: "", 2: ""}
    sent = {"messages": ASK, "stream": True, **body}
    with tools.http.stream("POST", "/v1/chat/completions", json=sent) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    for call in choice["delta"].get("tool_calls", []):
                        arguments[choice["index"]] += call["function"]["arguments"]
    assert all(json.loads(text)["city"] in ("Oslo", "Rome") for text in arguments.values())


def test_a_call_goes_on_to_its_result_and_reuses_the_prompt(tools: Service) -> None:
    """The next turn begins with the same tokens, and only what is new is computed."""
    first = chat(tools, tools=[TOOL], tool_choice="required", kvstitch=NO_DOCUMENTS)
    message = first["choices"][0]["message"]
    call = message["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4 degrees"}
    second = chat(
        tools,
        messages=[*ASK, message, result],
        tools=[TOOL],
        max_tokens=4,
        kvstitch=NO_DOCUMENTS,
    )
    reused = second["kvstitch"]["cache"]["reused_tokens"]
    assert reused > 0.8 * first["usage"]["prompt_tokens"]


def test_n_answers_compute_their_prompt_once(tools: Service) -> None:
    found = chat(tools, n=4, temperature=1.0, seed=3, max_tokens=8, kvstitch=NO_DOCUMENTS)
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert len(texts) == 4 and len(set(texts)) > 1
    again = [
        chat(tools, temperature=1.0, seed=3 + n, max_tokens=8, kvstitch=NO_DOCUMENTS)
        for n in range(4)
    ]
    assert [one["choices"][0]["message"]["content"] for one in again] == texts
