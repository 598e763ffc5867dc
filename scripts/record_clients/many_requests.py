# ruff: noqa: B023 - each function is called before the next round
"""Many requests of each client, for __main__.py: what they send matters, not the answers.

`python many_requests.py URL`; a client's base address is URL/CLIENT/WHAT/v1.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any, Literal

import agents
import instructor
import litellm
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_openai import OpenAI as LangChainText
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai.types.shared import Reasoning
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]
MODEL = "demo_model"
QUESTION = "Which animal does Quentin Bruvik keep?"
USER = {"role": "user", "content": QUESTION}


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]
    note: str | None = None


def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Tells the weather."""
    return f"4 degrees in {city}"


FUNCTION = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"type": "function", "strict": True, **FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather",
        "arguments": '{"city": "Oslo"}'}}  # fmt: skip
RESULT = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"},
]
ITEMS = [
    USER,
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather",
     "arguments": '{"city": "Oslo"}', "status": "completed"},
    {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"},
]  # fmt: skip
PNG = "data:image/png;base64,iVBORw0KGgo="
PICTURE = [
    {"type": "text", "text": QUESTION},
    {"type": "image_url", "image_url": {"url": PNG}},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "keeps", "strict": True,
          "schema": {"type": "object", "properties": {"animal": {"type": "string"}},
                     "required": ["animal"], "additionalProperties": False}}}  # fmt: skip


def at(client: str, what: str) -> str:
    return f"{URL}/{client}/{what.replace(' ', '_')}/v1"


async def attempt(call: Callable[[], Any]) -> None:
    """A request that is refused is recorded as well."""
    with contextlib.suppress(Exception):
        found = call()
        if asyncio.iscoroutine(found):
            found = await found
        if hasattr(found, "__aiter__"):
            async for _ in found:
                pass
        elif hasattr(found, "__next__") or type(found).__name__ == "Stream":
            for _ in found:
                pass


CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
    "picture": {"messages": [{"role": "user", "content": PICTURE}]},
    "sampling": {"temperature": 0.7, "top_p": 0.9, "seed": 1, "max_completion_tokens": 32},
    "penalties": {"frequency_penalty": 0.1, "presence_penalty": 0.1, "stop": ["\n"], "n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1}},
    "bookkeeping": {"user": "u", "store": False, "metadata": {"a": "b"}, "service_tier": "auto",
                    "safety_identifier": "s", "prompt_cache_key": "k"},
    "effort": {"reasoning_effort": "low", "verbosity": "low"},
    "nulls": {"extra_body": {"temperature": None, "tools": None, "tool_choice": None, "n": None,
                             "stop": None, "response_format": None, "stream_options": None,
                             "parallel_tool_calls": None, "future_field": None}},
    "unknown": {"extra_body": {"future_field": {"a": 1}}},
    "search": {"web_search_options": {}},
    "sound": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "prediction": {"prediction": {"type": "content", "content": "goat"}},
    "tools": {"tools": [TOOL]},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "named": {"tools": [TOOL], "tool_choice": {"type": "function",
                                               "function": {"name": "get_weather"}}},
    "no tools": {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
    "custom tool": {"tools": [TOOL, {"type": "custom", "custom": {"name": "patch"}}]},
    "allowed tools": {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}},
    "result": {"messages": RESULT, "tools": [TOOL]},
    "json": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": SCHEMA},
    "schema and required": {"response_format": SCHEMA, "tools": [TOOL],
                            "tool_choice": "required"},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "streamed call": {"stream": True, "tools": [TOOL], "tool_choice": "required"},
    "no model": {"model": "gpt-5"},
}  # fmt: skip
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "instructions": {"instructions": "Be brief.", "max_output_tokens": 32, "temperature": 0.5},
    "null fields": {"extra_body": dict.fromkeys(
        ("instructions", "tools", "text", "reasoning", "include", "truncation", "metadata",
         "tool_choice", "previous_response_id", "conversation", "prompt", "future"))},
    "unknown": {"extra_body": {"client_metadata": {"a": "b"}}},
    "bookkeeping": {"store": False, "include": ["reasoning.encrypted_content"],
                    "prompt_cache_key": "k", "service_tier": "auto", "truncation": "auto"},
    "reasoning": {"reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}},
    "logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "background": {"background": True},
    "continued": {"previous_response_id": "resp_1"},
    "tools": {"tools": [FLAT]},
    "required": {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}},
    "allowed tools": {"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto",
                      "tools": [{"type": "function", "name": "get_weather"}]}},
    "hosted tools": {"tools": [FLAT, {"type": "web_search"}, {"type": "image_generation"},
                               {"type": "file_search", "vector_store_ids": ["v"]},
                               {"type": "code_interpreter", "container": {"type": "auto"}},
                               {"type": "mcp", "server_label": "d", "server_url": "https://d"},
                               {"type": "custom", "name": "patch"}, {"type": "local_shell"}]},
    "hosted choice": {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
    "only hosted": {"tools": [{"type": "web_search"}]},
    "result": {"input": ITEMS, "tools": [FLAT]},
    "reference": {"input": [USER, {"type": "item_reference", "id": "msg_1"}]},
    "picture": {"input": [{"role": "user", "content": [{"type": "input_image", "detail": "auto",
                           "image_url": PNG}]}]},
    "schema": {"text": {"format": {"type": "json_schema", **SCHEMA["json_schema"]}}},
    "schema and required": {"text": {"format": {"type": "json_schema", **SCHEMA["json_schema"]}},
                            "tools": [FLAT], "tool_choice": "required"},
    "stream": {"stream": True},
}  # fmt: skip


async def of_openai() -> None:
    for what, more in CHATS.items():
        client = openai.OpenAI(base_url=at("openai", what), max_retries=0)
        body = {"model": MODEL, "messages": [USER], **more}
        await attempt(lambda: client.chat.completions.create(**body))
    for what, more in RESPONSES.items():
        client = openai.OpenAI(base_url=at("openai", what), max_retries=0)
        body = {"model": MODEL, "input": QUESTION, **more}
        await attempt(lambda: client.responses.create(**body))
    client = openai.OpenAI(base_url=at("openai", "others"), max_retries=0)
    await attempt(lambda: client.models.list())
    await attempt(lambda: client.embeddings.create(model="all-MiniLM-L6-v2", input="a goat"))
    await attempt(lambda: client.embeddings.create(model=MODEL, input=[[1, 2]], dimensions=64))
    for more in (
        {},
        {"logprobs": 2, "echo": True},
        {"suffix": "x", "best_of": 2},
        {"stream": True},
    ):
        await attempt(lambda: client.completions.create(model=MODEL, prompt=QUESTION, **more))
    await attempt(lambda: client.chat.completions.parse(
        model=MODEL, messages=[USER], response_format=Keeps))  # fmt: skip
    await attempt(lambda: client.responses.parse(model=MODEL, input=QUESTION, text_format=Keeps))


async def of_agents() -> None:
    agents.set_tracing_disabled(True)
    tool = agents.function_tool(get_weather)
    hosted = [agents.WebSearchTool(), agents.FileSearchTool(vector_store_ids=["v"]),
              agents.HostedMCPTool(tool_config={"type": "mcp", "server_label": "d",
                                                "server_url": "https://d"})]  # fmt: skip
    settings = {
        "plain": agents.ModelSettings(),
        "required": agents.ModelSettings(tool_choice="required"),
        "rich": agents.ModelSettings(
            temperature=0.2, max_tokens=64, truncation="auto", store=False, verbosity="low",
            parallel_tool_calls=False, metadata={"a": "b"}, include_usage=True,
            reasoning=Reasoning(effort="low"), extra_body={"future": 1}, extra_args={"user": "u"}),
    }  # fmt: skip
    kinds = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    outputs = {"text": None, "type": Keeps}
    offered = {"none": [], "function": [tool], "hosted": [tool, *hosted]}
    for kind, how, output, tools in product(kinds, settings, outputs, offered):
        what = f"{kind} {how} {output} {tools}"
        client = openai.AsyncOpenAI(base_url=at("OpenAI_agents_SDK", what), max_retries=0)
        agent = agents.Agent(
            name="a", instructions="Be brief.", tools=offered[tools], output_type=outputs[output],
            model=kinds[kind](model=MODEL, openai_client=client), model_settings=settings[how],
            tool_use_behavior="stop_on_first_tool",
        )  # fmt: skip
        await attempt(lambda: agents.Runner.run(agent, QUESTION, max_turns=2))


async def of_litellm() -> None:
    litellm.telemetry = False
    for what, more in CHATS.items():
        common = {"model": f"openai/{MODEL}", "api_base": at("LiteLLM", what), "max_retries": 0}
        body = {**common, "messages": [USER], **more, **{k: v for k, v in common.items()}}
        await attempt(lambda: litellm.completion(**body))
    base = {"api_base": at("LiteLLM", "others"), "max_retries": 0}
    for more in ({}, {"encoding_format": None}, {"dimensions": 64}, {"user": "u"}):
        await attempt(
            lambda: litellm.embedding(
                model="openai/all-MiniLM-L6-v2", input=["a goat"], **base, **more
            )
        )
    await attempt(lambda: litellm.responses(model=f"openai/{MODEL}", input=QUESTION, **base))
    await attempt(lambda: litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt=QUESTION, **base))  # fmt: skip


async def of_langchain() -> None:
    for what, more in {
        "plain": {}, "rich": {"temperature": 0.3, "max_tokens": 32, "n": 2, "seed": 3},
        "usage": {"stream_usage": True}, "logprobs": {"logprobs": True, "top_logprobs": 2},
        "responses": {"use_responses_api": True},
        "responses rich": {"use_responses_api": True, "truncation": "auto", "store": False,
                           "include": ["reasoning.encrypted_content"],
                           "reasoning": {"effort": "low"}, "verbosity": "low"},
        "extra": {"extra_body": {"future": 1}, "model_kwargs": {"user": "u"}},
    }.items():  # fmt: skip
        model = ChatOpenAI(base_url=at("LangChain", what), model=MODEL, max_retries=0, **more)
        bound = model.bind_tools([get_weather])
        forced = model.bind_tools([get_weather, {"type": "web_search"}], tool_choice="any")
        for method in ("json_schema", "function_calling", "json_mode"):
            formed = model.with_structured_output(Keeps, method=method)
            await attempt(lambda: formed.invoke(QUESTION))
        for one in (model, bound, forced):
            await attempt(lambda: one.invoke(QUESTION))
        await attempt(lambda: iter(list(model.stream(QUESTION))))
    text = LangChainText(base_url=at("LangChain", "text"), model=MODEL, max_retries=0)
    await attempt(lambda: text.invoke(QUESTION))
    for checked in (True, False):
        embedder = OpenAIEmbeddings(
            base_url=at("LangChain", "embeddings"), model="all-MiniLM-L6-v2", max_retries=0,
            check_embedding_ctx_length=checked)  # fmt: skip
        await attempt(lambda: embedder.embed_documents(["a goat"]))


async def of_llama_index() -> None:
    from llama_index.core.tools import FunctionTool

    tool = FunctionTool.from_defaults(get_weather)
    for what, more in {
        "plain": {}, "rich": {"temperature": 0.3, "max_tokens": 32, "reuse_client": False},
        "extra": {"additional_kwargs": {"user": "u", "future": 1}},
        "structured": {"should_use_structured_outputs": True},
    }.items():  # fmt: skip
        model = OpenAILike(
            api_base=at("LlamaIndex", what), model=MODEL, api_key="none", is_chat_model=True,
            is_function_calling_model=True, max_retries=0, **more)  # fmt: skip
        await attempt(lambda: model.chat([ChatMessage(content=QUESTION)]))
        await attempt(lambda: model.stream_chat([ChatMessage(content=QUESTION)]))
        await attempt(lambda: model.predict_and_call([tool], QUESTION))
        for required in (True, False):
            await attempt(lambda: model.chat_with_tools([tool], QUESTION, tool_required=required))
        await attempt(lambda: model.as_structured_llm(Keeps).complete(QUESTION))


async def of_pydantic_ai() -> None:
    for kind, output in product(
        (OpenAIChatModel, OpenAIResponsesModel), (None, ToolOutput, NativeOutput)
    ):
        what = f"{kind.__name__} {output and output.__name__}"
        provider = OpenAIProvider(base_url=at("Pydantic_AI", what), api_key="none")
        for settings in ({}, {"temperature": 0.2, "parallel_tool_calls": False, "seed": 1,
                              "openai_reasoning_effort": "low", "openai_user": "u"}):  # fmt: skip
            agent: Any = PydanticAgent(
                kind(MODEL, provider=provider), output_type=output(Keeps) if output else str,
                tools=[get_weather] if settings else [], retries=0)  # fmt: skip
            await attempt(lambda: agent.run(QUESTION, model_settings=settings))


async def of_instructor() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON,
                 instructor.Mode.TOOLS_STRICT, instructor.Mode.RESPONSES_TOOLS):  # fmt: skip
        base = openai.OpenAI(base_url=at("Instructor", mode.name), max_retries=0)
        await attempt(lambda: instructor.from_openai(base, mode=mode).create(
            model=MODEL, messages=[USER], response_model=Keeps, max_retries=0))  # fmt: skip


async def main() -> None:
    clients: list[Callable[[], Coroutine[Any, Any, None]]] = [
        of_openai, of_agents, of_litellm, of_langchain, of_llama_index, of_pydantic_ai,
        of_instructor,
    ]  # fmt: skip
    for client in clients:
        await client()


asyncio.run(main())
