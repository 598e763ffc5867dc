"""From OpenAI's messages, items and tools to turns and a set of tools, for chats and responses."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import JsonValue

from kvstitch.service.errors import InvalidRequest, Unsupported
from kvstitch.service.gateway.http.openai.field_table import (
    CONTENT_PART,
    FUNCTION,
    INPUT_ITEM,
    MESSAGE,
    TOOL,
    Notes,
)
from kvstitch.service.gateway.schemas.openai import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionChoice,
    FunctionTool,
    InputItem,
    InputPart,
    NamedTool,
    OtherChoice,
    ResponsesRequest,
    ToolDefinition,
)
from kvstitch.service.gateway.tool_calls.json_call import is_object, object_of
from kvstitch.service.gateway.tool_calls.tools import Tool, ToolSet
from kvstitch.service.prompt import ToolCall, Turn

T = TypeVar("T", ToolDefinition, FunctionTool)
_RESPONSES_TEXTS = ("input_text", "output_text", "text")
_THOUGHTS = ("reasoning", "reasoning_text", "thinking", "redacted_thinking")


def turns_of_messages(messages: Sequence[ChatMessage], notes: Notes) -> list[Turn]:
    """Return the turns of a chat; `notes` gets what the client is to be told."""
    return [_of_message(f"messages[{number}]", one, notes) for number, one in enumerate(messages)]


def turns_of_items(items: Sequence[InputItem], notes: Notes) -> list[Turn]:
    """Return the turns of the items of a response's input, as `turns_of_messages` does."""
    out = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if item.type == "reasoning":
            notes.append(f"{where} has no effect: earlier thoughts are left out")
            continue
        notes.check(item.model_extra, INPUT_ITEM, f"{where}.", echoed=True)
        out.append(_of_item(where, item, notes))
    return out


def tools_of_chat(body: ChatRequest, notes: Notes) -> ToolSet | None:
    """Return the tools that the answer may call, None if it may call none."""
    tools = _callable(body.tools, _tool, notes)
    choice = body.tool_choice
    named = choice.function.name if isinstance(choice, NamedTool) else None
    parallel = body.parallel_tool_calls is not False
    return tool_set(tools, choice, named, parallel=parallel, name_field="function.name")


def tools_of_response(body: ResponsesRequest, notes: Notes) -> ToolSet | None:
    """Return the tools that the answer may call, as `tools_of_chat` does."""
    tools = _callable(body.tools, _flat_tool, notes)
    choice = body.tool_choice
    named = choice.name if isinstance(choice, FunctionChoice) else None
    return tool_set(tools, choice, named, parallel=body.parallel_tool_calls is not False)


def _of_message(where: str, message: ChatMessage, notes: Notes) -> Turn:
    if message.role == "function":
        raise Unsupported(
            f"{where}.role function was replaced by tool: send that", field=f"{where}.role"
        )
    notes.check(message.model_extra, MESSAGE, f"{where}.", echoed=True)
    role = "system" if message.role == "developer" else message.role
    calls = _calls(where, message, notes)
    if role == "tool" and not message.tool_call_id:
        raise _missing(f"{where}.tool_call_id", "the id of the call")
    content = message.content
    if content is None and role in ("assistant", "tool"):  # an answer may be without text
        content = message.refusal or ""
    if content is None:
        raise _missing(f"{where}.content", "the message's text")
    text = _text(f"{where}.content", content, notes, kinds=("text",))
    return Turn(role, text, calls, message.tool_call_id or "" if role == "tool" else "")


def _calls(where: str, message: ChatMessage, notes: Notes) -> tuple[ToolCall, ...]:
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        field = f"{where}.tool_calls"
        raise InvalidRequest(f"{field}: only an assistant calls tools", field=field)
    out = []
    for number, call in enumerate(calls):
        path = f"{where}.tool_calls[{number}]"
        notes.check(call.model_extra, {}, f"{path}.", echoed=True)
        notes.check(call.function.model_extra, {}, f"{path}.function.", echoed=True)
        arguments = _arguments(f"{path}.function.arguments", call.function.arguments, notes)
        out.append(ToolCall(call.id or "", call.function.name, arguments))
    return tuple(out)


def _of_item(where: str, item: InputItem, notes: Notes) -> Turn:
    match item.type:
        case "message":
            if item.role is None:
                raise _missing(f"{where}.role")
            role = "system" if item.role == "developer" else item.role
            text = item.content or "" if role == "assistant" else item.content
            return Turn(role, _item_text(f"{where}.content", text, notes))
        case "function_call":
            if item.call_id is None or item.name is None:
                raise _missing(f"{where}.{'name' if item.call_id else 'call_id'}")
            arguments = _arguments(f"{where}.arguments", item.arguments, notes)
            return Turn("assistant", "", (ToolCall(item.call_id, item.name, arguments),))
        case "function_call_output":
            if item.call_id is None:
                raise _missing(f"{where}.call_id")
            return Turn("tool", _item_text(f"{where}.output", item.output, notes), (), item.call_id)
    raise Unsupported(
        f"{where}.type {item.type!r} is not supported: send messages, function_call and "
        "function_call_output",
        field=f"{where}.type",
    )


def _item_text(where: str, content: str | list[InputPart] | None, notes: Notes) -> str:
    if content is None:
        raise _missing(where)
    return _text(where, content, notes, kinds=_RESPONSES_TEXTS, ignored=("logprobs",))


def _text(
    where: str,
    content: str | Sequence[ContentPart | InputPart],
    notes: Notes,
    *,
    kinds: tuple[str, ...],
    ignored: tuple[str, ...] = (),
) -> str:
    """Return a text that came whole or in parts, of these kinds; `where` is its path in the body,
    and of its parts `ignored` fields are accepted without a word."""
    if isinstance(content, str):
        return content
    out = ""
    for number, part in enumerate(content):
        path = f"{where}[{number}]"
        if part.type in _THOUGHTS:
            notes.append(f"{path} has no effect: earlier thoughts are left out")
            continue
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*kinds, "refusal") or text is None:
            raise Unsupported(f"{path} is not text: only text is supported", field=path)
        extra = {k: v for k, v in (part.model_extra or {}).items() if k not in ignored}
        notes.check(extra, CONTENT_PART, f"{path}.", echoed=True)
        out += text
    return out


def _arguments(field: str, sent: str | dict[str, JsonValue] | None, notes: Notes) -> str:
    """Return the JSON text of a call's arguments, made whole if the call was cut short."""
    if isinstance(sent, dict):
        return json.dumps(sent, ensure_ascii=False)
    text = (sent or "").strip() or "{}"
    if is_object(text):
        return text
    if not text.startswith("{"):
        raise InvalidRequest(f"{field} must be the JSON text of an object", field=field)
    notes.append(f"{field} is no whole JSON: the model is told what there is of it")
    return json.dumps(object_of(text), ensure_ascii=False)


def _callable(
    sent: Sequence[T] | None, read: Callable[[str, T, Notes], Tool], notes: Notes
) -> list[Tool]:
    """Return the tools that are functions; nobody here could run others."""
    out = []
    for number, tool in enumerate(sent or []):
        where = f"tools[{number}]"
        if tool.type == "function":
            out.append(read(where, tool, notes))
        else:
            notes.append(f"{where} has no effect: it is of type {tool.type!r}, not a function")
    return out


def _tool(where: str, tool: ToolDefinition, notes: Notes) -> Tool:
    function = tool.function
    if function is None:
        raise _missing(f"{where}.function", "its name and parameters")
    notes.check(tool.model_extra, TOOL, f"{where}.")
    notes.check(function.model_extra, FUNCTION, f"{where}.function.")
    return Tool(function.name, function.description or "", function.parameters)


def _flat_tool(where: str, tool: FunctionTool, notes: Notes) -> Tool:
    if tool.name is None:
        raise _missing(f"{where}.name")
    # The clients send strict by themselves, and it changes nothing where no call is enforced.
    notes.check(tool.model_extra, FUNCTION, f"{where}.")
    return Tool(tool.name, tool.description or "", tool.parameters)


def tool_set(
    tools: list[Tool], mode: Any, named: str | None, *, parallel: bool, name_field: str = "name"
) -> ToolSet | None:
    """Return the tools that may be called as `mode` (OpenAI's tool_choice) says, None if none may;
    `named`: the only one that must be."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if tool.name in names:
            field = f"tools[{number}].{name_field}"
            raise InvalidRequest(f"{field} {tool.name!r} is another tool's", field=field)
        names.add(tool.name)
    if named is not None and named not in names:
        raise InvalidRequest(
            f"tool_choice: there is no tool {named!r}: name one of tools", field="tool_choice"
        )
    if isinstance(mode, OtherChoice):
        mode, allowed = _allowed(mode)
        tools = [tool for tool in tools if tool.name in allowed]
    if not tools and mode == "required":
        raise InvalidRequest("tool_choice needs functions: send tools", field="tool_choice")
    if not tools or mode == "none":
        return None
    return ToolSet(tuple(tools), "required" if mode == "required" else "auto", named, parallel)


def _allowed(choice: OtherChoice) -> tuple[str, list[str]]:
    """Return the mode and the names of OpenAI's allowed_tools, which chats hold one level lower."""
    extra = choice.model_extra or {}
    given = extra.get("allowed_tools", extra)
    try:
        if choice.type == "allowed_tools" and given["mode"] in ("auto", "required"):
            return given["mode"], [
                str({**t, **t.get("function", {})}["name"]) for t in given["tools"]
            ]
    except (LookupError, TypeError, AttributeError):
        pass
    raise Unsupported(
        f"tool_choice of type {choice.type!r} is not supported, or not whole: send none, auto, "
        "required, a function, or allowed_tools",
        field="tool_choice",
    )


def _missing(field: str, what: str = "it") -> InvalidRequest:
    return InvalidRequest(f"{field} is missing: send {what}", field=field)
