"""Sixty tools, as an agent with several MCP servers has them, in five frameworks: each has a call
made, whole and streamed, and most let the model go on with its result.

    python many_tools.py URL MODEL FRAMEWORK      prints {"whole": [name, arguments], "streamed": …}
"""

import asyncio
import contextlib
import json
import sys
from typing import Any

URL, MODEL, FRAMEWORK = sys.argv[1:]
ASKED = "What is the weather in Oslo right now? Use a tool."
SERVERS = ("files", "mail", "calendar", "tickets", "wiki", "shop")
ACTIONS = ("list", "read", "create", "update", "delete", "search", "share", "move", "count", "tag")
RESULT = "4 degrees and rain in Oslo"


def schema(action: str) -> dict[str, Any]:
    """Parameters of a tool about one kind of things."""
    properties = {
        "path": {"type": "string", "description": f"What to {action}, by its path or its id"},
        "limit": {"type": "integer", "description": "How many at most", "minimum": 1},
        "order": {"type": "string", "enum": ["newest", "oldest"]},
    }
    return {"type": "object", "properties": properties, "required": ["path"]}


WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather in a city right now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"],
    },
}
SERVED = [
    {
        "name": f"{server}_{action}",
        "description": f"Can {action} entries of {server} that the user may see.",
        "parameters": schema(action),
    }
    for server in SERVERS
    for action in ACTIONS
]
TOOLS = [*SERVED[:59], WEATHER]


def named(call: Any) -> list[Any]:
    """Name and arguments of a call as OpenAI writes it."""
    return [call.function.name, json.loads(call.function.arguments)]


def openai() -> dict[str, Any]:
    """openai: its helper of streams puts the pieces together."""
    from openai import OpenAI

    client = OpenAI(base_url=URL, api_key="none", timeout=600)
    tools: Any = [{"type": "function", "function": each} for each in TOOLS]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    body = {"model": MODEL, "tools": tools, "max_tokens": 100}
    first = client.chat.completions.create(messages=messages, **body).choices[0].message
    (call,) = first.tool_calls
    # As it came, with every field that it has.
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    last = client.chat.completions.create(messages=messages, **body).choices[0]
    with client.chat.completions.stream(messages=messages[:1], **body) as stream:
        final = stream.get_final_completion().choices[0].message
    return {"whole": named(call), "streamed": named(final.tool_calls[0]),
            "after": last.message.content or last.finish_reason}  # fmt: skip


def litellm() -> dict[str, Any]:
    """LiteLLM: one interface in front of many services."""
    import litellm

    tools = [{"type": "function", "function": each} for each in TOOLS]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    body = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "tools": tools,
            "max_tokens": 100, "timeout": 600}  # fmt: skip
    first = litellm.completion(messages=messages, **body).choices[0].message
    (call,) = first.tool_calls
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    last = litellm.completion(messages=messages, **body).choices[0].message
    chunks = list(litellm.completion(messages=messages[:1], stream=True, **body))
    built = litellm.stream_chunk_builder(chunks).choices[0].message
    return {"whole": named(call), "streamed": named(built.tool_calls[0]), "after": last.content}


def langchain() -> dict[str, Any]:
    """LangChain: an agent that calls, gets the result and answers."""
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI

    def tool(each: dict[str, Any]) -> StructuredTool:
        return StructuredTool(name=each["name"], description=each["description"],
                              args_schema=each["parameters"], func=lambda **_: RESULT)  # fmt: skip

    model = ChatOpenAI(base_url=URL, model=MODEL, api_key="none", timeout=600, max_tokens=100)
    agent = create_agent(model, [tool(each) for each in TOOLS])
    asked = {"messages": [("user", ASKED)]}
    state = agent.invoke(asked)["messages"]
    calls = [call for message in state for call in getattr(message, "tool_calls", [])]
    bound = model.bind_tools([{"type": "function", "function": each} for each in TOOLS])
    built = None
    for chunk in bound.stream(ASKED):
        built = chunk if built is None else built + chunk
    return {"whole": [calls[0]["name"], calls[0]["args"]], "after": state[-1].content,
            "streamed": [built.tool_calls[0][key] for key in ("name", "args")]}  # fmt: skip


def pydantic_ai() -> dict[str, Any]:
    """Pydantic AI: an agent, run and streamed."""
    from pydantic_ai import Agent, Tool, capture_run_messages
    from pydantic_ai.exceptions import UnexpectedModelBehavior
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def result(**_: Any) -> str:
        return RESULT

    tools = [
        Tool.from_schema(result, each["name"], each["description"], each["parameters"])
        for each in TOOLS
    ]
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    settings: Any = {"max_tokens": 100, "timeout": 600}
    agent = Agent(model, tools=tools, model_settings=settings)

    def called(messages: Any) -> list[Any]:
        parts = [p for m in messages if isinstance(m, ModelResponse) for p in m.parts]
        call = next(part for part in parts if isinstance(part, ToolCallPart))
        return [call.tool_name, call.args_as_dict()]

    async def run() -> dict[str, Any]:
        # What a small model makes of the result is its own affair, and may end the run.
        with capture_run_messages() as whole, contextlib.suppress(UnexpectedModelBehavior):
            await agent.run(ASKED)
        with capture_run_messages() as streamed, contextlib.suppress(UnexpectedModelBehavior):
            async with agent.run_stream(ASKED) as stream:
                async for _ in stream.stream_text():
                    pass
        return {"whole": called(whole), "streamed": called(streamed)}

    return asyncio.run(run())


def agents() -> dict[str, Any]:
    """OpenAI's agents SDK: whole over chats, streamed over the Responses API."""
    from agents import (
        Agent,
        FunctionTool,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key="none", timeout=600)

    async def result(context: Any, arguments: str) -> str:
        return RESULT

    tools = [
        FunctionTool(each["name"], each["description"], each["parameters"], result,
                     strict_json_schema=False)
        for each in TOOLS
    ]  # fmt: skip
    common: Any = {"tools": tools, "model_settings": ModelSettings(max_tokens=100),
                   "tool_use_behavior": "stop_on_first_tool"}  # fmt: skip

    def called(items: Any) -> list[Any]:
        raw = next(item.raw_item for item in items if item.type == "tool_call_item")
        return [raw.name, json.loads(raw.arguments)]

    async def run() -> dict[str, Any]:
        chats = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        agent = Agent(name="a", model=chats, **common)
        whole = await Runner.run(agent, ASKED)
        new = OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = Agent(name="a", model=new, **common)
        streamed = Runner.run_streamed(agent, ASKED)
        async for _ in streamed.stream_events():
            pass
        return {"whole": called(whole.new_items), "after": whole.final_output,
                "streamed": called(streamed.new_items)}  # fmt: skip

    return asyncio.run(run())


print(json.dumps({"tools": len(TOOLS), **globals()[FRAMEWORK]()}))
