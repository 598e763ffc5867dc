"""Translates requests of the Responses API."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest, Unsupported
from service.gateway.http.openai.conversation_translation import tool_set
from service.gateway.http.openai.field_rules import check_fields
from service.gateway.http.openai.field_table import (
    CONTENT_PART,
    FUNCTION,
    INPUT_ITEM,
    RESPONSES,
    STREAM_OPTIONS,
    TEXT_OPTIONS,
)
from service.gateway.http.openai.request_translation import (
    Served,
    TranslatedRequest,
    common_fields,
    each_choice,
    renaming,
    unique,
)
from service.gateway.http.openai.structured_output import WantedForm, named_schema, with_tools
from service.gateway.schemas.openai.responses import (
    FunctionChoice,
    FunctionTool,
    InputItem,
    InputPart,
    ResponsesRequest,
)
from service.gateway.tool_calls.json_call import is_object
from service.gateway.tool_calls.tools import Tool, ToolSet
from service.prompt import ToolCall, Turn

_TEXTS = ("input_text", "output_text", "text")
_NAMES = {"max_tokens": "max_output_tokens"}


def from_responses(body: ResponsesRequest, served: Served) -> TranslatedRequest:
    """Translate a request.

    Raises:
        ModelNotFound: There is no such model or preset.
        Unsupported: A field asks for something that is not supported.
        InvalidRequest: A field is wrong.
    """
    notes = check_fields(body.model_extra, RESPONSES)
    if body.stream_options is not None:
        notes += check_fields(body.stream_options.model_extra, STREAM_OPTIONS, "stream_options.")
    turns = [] if body.instructions is None else [Turn("system", body.instructions)]
    if isinstance(body.input, str):
        turns.append(Turn("user", body.input))
    else:
        turns += _turns(body.input, notes)
    tools = _tools(body, notes)
    form = with_tools(_form(body, notes), tools, served.tool_form)
    same = ("temperature", "top_p", "stream", "presence_penalty", "frequency_penalty")
    given = {name: getattr(body, name) for name in same}
    fields = {
        **common_fields(body, served),
        **{name: value for name, value in given.items() if value is not None},
        "max_tokens": body.max_output_tokens,
        "guided": None if form is None else form.guided,
    }
    inner = renaming("input", form)

    def rename(name: str | None) -> str | None:
        return _NAMES.get(name or "", inner(name))

    requests = each_choice(turns, tools, fields, n=1, seed=None, rename=rename)
    return TranslatedRequest(requests, 1, tools, unique(notes), rename)


def _turns(items: Sequence[InputItem], notes: list[str]) -> list[Turn]:
    out = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if item.type == "reasoning":
            notes.append(f"{where} has no effect: earlier thoughts are left out")
            continue
        notes += check_fields(item.model_extra, INPUT_ITEM, f"{where}.")
        out.append(_turn(where, item, notes))
    return out


def _turn(where: str, item: InputItem, notes: list[str]) -> Turn:
    match item.type:
        case "message":
            if item.role is None:
                raise _missing(f"{where}.role")
            role = "system" if item.role == "developer" else item.role
            return Turn(role, _text(f"{where}.content", item.content, notes))
        case "function_call":
            if item.call_id is None or item.name is None:
                raise _missing(f"{where}.{'name' if item.call_id else 'call_id'}")
            arguments = item.arguments or "{}"
            if not is_object(arguments):
                field = f"{where}.arguments"
                raise InvalidRequest(f"{field} must be the JSON text of an object", field=field)
            return Turn("assistant", "", (ToolCall(item.call_id, item.name, arguments),))
        case "function_call_output":
            if item.call_id is None:
                raise _missing(f"{where}.call_id")
            return Turn("tool", _text(f"{where}.output", item.output, notes), (), item.call_id)
    raise Unsupported(
        f"{where}.type {item.type!r} is not supported: send messages, function_call and "
        "function_call_output",
        field=f"{where}.type",
    )


def _text(where: str, content: str | list[InputPart] | None, notes: list[str]) -> str:
    if content is None:
        raise _missing(where)
    if isinstance(content, str):
        return content
    out = ""
    for number, part in enumerate(content):
        path = f"{where}[{number}]"
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXTS, "refusal") or text is None:
            raise Unsupported(f"{path} is not text: only text is supported", field=path)
        extra = {k: v for k, v in (part.model_extra or {}).items() if k != "logprobs"}
        notes += check_fields(extra, CONTENT_PART, f"{path}.")
        out += text
    return out


def _tools(body: ResponsesRequest, notes: list[str]) -> ToolSet | None:
    tools = [_tool(f"tools[{n}]", tool, notes) for n, tool in enumerate(body.tools or [])]
    choice = body.tool_choice
    return tool_set(
        tools,
        choice.name if isinstance(choice, FunctionChoice) else None,
        choice if isinstance(choice, str) else None,
        parallel=body.parallel_tool_calls is not False,
        where="name",
    )


def _tool(where: str, tool: FunctionTool, notes: list[str]) -> Tool:
    if tool.type != "function":
        raise Unsupported(
            f"{where}.type {tool.type!r} is not supported: only function is", field=f"{where}.type"
        )
    if tool.name is None:
        raise _missing(f"{where}.name")
    # The clients send strict by themselves, and it changes nothing where no call is enforced.
    notes += check_fields(tool.model_extra, FUNCTION, f"{where}.")
    return Tool(tool.name, tool.description or "", tool.parameters)


def _form(body: ResponsesRequest, notes: list[str]) -> WantedForm | None:
    if body.text is None:
        return None
    notes += check_fields(body.text.model_extra, TEXT_OPTIONS, "text.")
    wanted = body.text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return WantedForm("text.format", {"json_object": True})
    return named_schema("text.format.schema", wanted.schema_)


def _missing(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is missing: send it", field=field)
