"""Anthropic's messages, tools and errors in terms of ours.

https://platform.claude.com/docs/en/api/messages, as it was in November 2026. As on OpenAI's routes
a field is honoured, noted or refused, and one that nobody knows is noted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvstitch.service.errors import InvalidRequest, KvstitchError, Unsupported
from kvstitch.service.gateway.http.openai import field_table
from kvstitch.service.gateway.http.openai.conversations import tool_set
from kvstitch.service.gateway.http.openai.field_table import Notes, Rules, noted, refused
from kvstitch.service.gateway.http.openai.requests import Served, TranslatedRequest, translated
from kvstitch.service.gateway.http.openai.structured_output import form_of_text, with_tools
from kvstitch.service.gateway.http.problems import sendable
from kvstitch.service.gateway.schemas.openai import TextOptions
from kvstitch.service.gateway.tool_calls.tools import Tool, ToolSet
from kvstitch.service.prompt import ToolCall, Turn
from kvstitch_messages.schemas import Block, MessagesRequest, Part, ToolChoice

_FIELDS: Rules = {
    "cache_control": noted("prompts are cached by their tokens"),
    "container": refused("nothing is run here"),
    "context_management": noted("a prompt is never cut", {}),
    "mcp_servers": refused("this service calls no tools itself", []),
    "metadata": noted("limits and tenants follow the API key", {}),
    "service_tier": noted("there is one tier", "auto", "standard_only"),
    "stream_options": noted("it is OpenAI's"),
    "thinking": noted("models do not think at length here", {"type": "disabled"}),
}
_BLOCK: Rules = {
    **field_table.CONTENT_PART,
    "caller": noted("models are not told of it", {"type": "direct"}),
    "citations": noted("models are not told of them", [], {"enabled": False}),
}
_TOOL: Rules = {
    **field_table.TOOL,
    "eager_input_streaming": noted("arguments are streamed as they come", True, False),
    "strict": field_table.FUNCTION["strict"],
}
_HONOURED: Final = ("temperature", "top_p", "stream", "max_tokens", "sampling_top_k", "stop")
_NAMES: Final = {"sampling_top_k": "top_k", "adapter": "model", "stop": "stop_sequences"}
_ERROR_TYPES: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip


def from_messages(body: MessagesRequest, served: Served) -> TranslatedRequest:
    """Translate a request. Raises as `from_chat` of OpenAI's."""
    notes = Notes(served.strict)
    notes.check({**(body.model_extra or {}), "stream_options": body.stream_options}, _FIELDS)
    turns = []
    if body.system is not None:
        turns.append(Turn("system", _text("system", body.system, notes)))
    for number, message in enumerate(body.messages):
        where = f"messages[{number}]"
        notes.check(message.model_extra, {}, f"{where}.", echoed=True)
        turns += _turns(f"{where}.content", message.role, message.content, notes)
    tools = _tools(body, notes)
    wanted = body.output_config or TextOptions()
    notes.check(wanted.model_extra, {"effort": _FIELDS["thinking"]}, "output_config.")
    form = form_of_text(wanted, "output_config.format")
    form = with_tools(form, tools, served.tool_form, notes)
    sent = {ours: getattr(body, _NAMES.get(ours, ours)) for ours in _HONOURED}
    fields = {name: value for name, value in sent.items() if value is not None}
    # Anthropic's clients put the beginning of the answer last.
    fields["continue_final_message"] = turns[-1].role == "assistant" and not turns[-1].calls
    return translated(
        body, served, [turns], question="messages", form=form, fields=fields, notes=notes,
        tools=tools, names=_NAMES,
    )  # fmt: skip


def error_response(error: KvstitchError, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error."""
    return 400 if error.status == 422 else error.status, error_object(error)


def error_object(error: KvstitchError) -> dict[str, Any]:
    """Return Anthropic's error object, for responses and for streams."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    message = sendable(error.message)
    if error.code == "prompt_too_long":  # the words by which Claude Code shortens a conversation
        message = f"prompt is too long: {message}"
    shown = {"type": _ERROR_TYPES.get(error.status, fallback), "message": message}
    param = None if error.field is None else sendable(error.field)
    return {"type": "error", "error": {**shown, "code": error.code, "param": param}}


def _turns(where: str, role: str, content: str | Sequence[Block], notes: Notes) -> list[Turn]:
    """Return the turns of a message: what tools gave stands apart, before the user's words."""
    said, calls, results = [], [], []
    for number, block in enumerate([] if isinstance(content, str) else content):
        path = f"{where}[{number}]"
        match block.type, role:
            case "tool_use", "assistant":
                name = _given(f"{path}.name", block.name)
                arguments = json.dumps(block.input or {}, ensure_ascii=False)
                calls.append(ToolCall(_given(f"{path}.id", block.id), name, arguments))
            case "tool_result", "user":
                called = _given(f"{path}.tool_use_id", block.tool_use_id)
                text = _text(f"{path}.content", block.content or "", notes)
                results.append(Turn("tool", "Error: " * bool(block.is_error) + text, (), called))
            case _:
                said.append((path, block))
                continue
        notes.check(block.model_extra, _BLOCK, f"{path}.", echoed=True)
    if results and not said:
        return results
    text = content if isinstance(content, str) else _joined(said, notes)
    return [*results, Turn(role, text, tuple(calls))]


def _text(where: str, content: str | Sequence[Part], notes: Notes) -> str:
    if isinstance(content, str):
        return content
    return _joined([(f"{where}[{n}]", part) for n, part in enumerate(content)], notes)


def _joined(parts: Sequence[tuple[str, Part]], notes: Notes) -> str:
    """Return the texts of parts, each on a line of its own."""
    texts = []
    for path, part in parts:
        if part.type in ("thinking", "redacted_thinking"):
            notes.append(f"{path} has no effect: earlier thoughts are left out")
            continue
        if part.type != "text" or part.text is None:
            raise Unsupported(
                f"{path} of type {part.type!r} is not supported here: send text, tool_use of an "
                "assistant, tool_result of a user; documents as kvstitch.inline_documents",
                field=path,
            )
        notes.check(part.model_extra, _BLOCK, f"{path}.", echoed=True)
        texts.append(part.text)
    return "\n".join(texts)


def _tools(body: MessagesRequest, notes: Notes) -> ToolSet | None:
    tools = []
    for number, tool in enumerate(body.tools or []):
        where = f"tools[{number}]"
        if tool.type != "custom":
            notes.append(f"{where} has no effect: nobody here runs tools of type {tool.type!r}")
            continue
        notes.check(tool.model_extra, _TOOL, f"{where}.")
        tools.append(Tool(tool.name, tool.description or "", tool.input_schema))
    choice = body.tool_choice or ToolChoice(type="auto")
    notes.check(choice.model_extra, {}, "tool_choice.")
    named = _given("tool_choice.name", choice.name) if choice.type == "tool" else None
    mode = {"any": "required", "tool": "auto"}.get(choice.type, choice.type)
    parallel = not choice.disable_parallel_tool_use
    return tool_set(tools, mode, named, parallel=parallel)


def _given(field: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"{field} is missing: send it", field=field)
    return value
