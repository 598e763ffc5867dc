"""From OpenAI's messages and tools to turns and a set of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from service.errors import InvalidRequest, Unsupported
from service.gateway.http.openai.field_rules import check_fields
from service.gateway.http.openai.field_table import CONTENT_PART, FUNCTION, MESSAGE, TOOL
from service.gateway.schemas.openai.chat import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    NamedTool,
    ToolDefinition,
)
from service.gateway.tool_calls.json_call import is_object
from service.gateway.tool_calls.tools import Tool, ToolSet
from service.prompt import ToolCall, Turn


def turns_of(messages: Sequence[ChatMessage], notes: list[str]) -> list[Turn]:
    """The turns of a conversation.

    Args:
        messages: As they were sent.
        notes: Gets what is to be noted for the client.

    Raises:
        Unsupported: A message holds what is not supported.
        InvalidRequest: A message is wrong.
    """
    return [_turn(f"messages[{number}]", one, notes) for number, one in enumerate(messages)]


def _turn(where: str, message: ChatMessage, notes: list[str]) -> Turn:
    if message.role == "function":
        raise Unsupported(
            f"{where}.role function was replaced by tool: send that", field=f"{where}.role"
        )
    notes += check_fields(message.model_extra, MESSAGE, f"{where}.")
    role = "system" if message.role == "developer" else message.role
    calls = _calls(where, message, notes)
    if role == "tool" and not message.tool_call_id:
        field = f"{where}.tool_call_id"
        raise InvalidRequest(f"{field} is missing: send the id of the call", field=field)
    content = message.content
    if content is None and role == "assistant":
        content = message.refusal or ("" if calls else None)
    text = _text(f"{where}.content", content, notes)
    return Turn(role, text, calls, message.tool_call_id or "" if role == "tool" else "")


def _calls(where: str, message: ChatMessage, notes: list[str]) -> tuple[ToolCall, ...]:
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        field = f"{where}.tool_calls"
        raise InvalidRequest(f"{field}: only an assistant calls tools", field=field)
    out = []
    for number, call in enumerate(calls):
        path = f"{where}.tool_calls[{number}]"
        notes += check_fields(call.model_extra, {}, f"{path}.")
        notes += check_fields(call.function.model_extra, {}, f"{path}.function.")
        arguments = call.function.arguments or "{}"
        if not is_object(arguments):
            field = f"{path}.function.arguments"
            raise InvalidRequest(f"{field} must be the JSON text of an object", field=field)
        out.append(ToolCall(call.id, call.function.name, arguments))
    return tuple(out)


def _text(where: str, content: str | list[ContentPart] | None, notes: list[str]) -> str:
    if content is None:
        raise InvalidRequest(f"{where} is missing: send the message's text", field=where)
    if isinstance(content, str):
        return content
    out = ""
    for number, part in enumerate(content):
        path = f"{where}[{number}]"
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal") or text is None:
            raise Unsupported(f"{path} is not text: only text is supported", field=path)
        notes += check_fields(part.model_extra, CONTENT_PART, f"{path}.")
        out += text
    return out


def tools_of(body: ChatRequest, notes: list[str]) -> ToolSet | None:
    """The tools that the answer may call; None: it may call none.

    Raises:
        Unsupported: A tool is no function.
        InvalidRequest: `tool_choice` asks for what is not there, or two tools have one name.
    """
    tools = [_tool(f"tools[{n}]", tool, notes) for n, tool in enumerate(body.tools or [])]
    choice = body.tool_choice
    return tool_set(
        tools,
        choice.function.name if isinstance(choice, NamedTool) else None,
        choice if isinstance(choice, str) else None,
        parallel=body.parallel_tool_calls is not False,
        where="function.name",
    )


def tool_set(
    tools: Sequence[Tool],
    named: str | None,
    choice: Literal["none", "auto", "required"] | None,
    *,
    parallel: bool,
    where: str,
) -> ToolSet | None:
    """The tools that the answer may call; None: it may call none.

    Args:
        tools: All that were sent.
        named: The only one that must be called.
        choice: Whether one must be called.
        parallel: Whether several may be called at once.
        where: Path of a tool's name in the tool.

    Raises:
        InvalidRequest: What must be called is not there, or two tools have one name.
    """
    names = [tool.name for tool in tools]
    for number, name in enumerate(names):
        if name in names[:number]:
            field = f"tools[{number}].{where}"
            raise InvalidRequest(f"{field} {name!r} is another tool's", field=field)
    if named is not None and named not in names:
        raise InvalidRequest(
            f"tool_choice: there is no tool {named!r}: name one of tools", field="tool_choice"
        )
    if not tools and choice == "required":
        raise InvalidRequest("tool_choice needs tools: send them", field="tool_choice")
    if not tools or choice == "none":
        return None
    return ToolSet(tuple(tools), "required" if choice == "required" else "auto", named, parallel)


def _tool(where: str, tool: ToolDefinition, notes: list[str]) -> Tool:
    if tool.type != "function":
        raise Unsupported(
            f"{where}.type {tool.type!r} is not supported: only function is", field=f"{where}.type"
        )
    if tool.function is None:
        field = f"{where}.function"
        raise InvalidRequest(f"{field} is missing: send its name and parameters", field=field)
    notes += check_fields(tool.model_extra, TOOL, f"{where}.")
    notes += check_fields(tool.function.model_extra, FUNCTION, f"{where}.function.")
    function = tool.function
    return Tool(function.name, function.description or "", function.parameters)
