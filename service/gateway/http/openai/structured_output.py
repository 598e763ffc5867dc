"""What form an answer must have: OpenAI's and vLLM's fields, and calls of tools, to `guided`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from service.errors import InvalidRequest
from service.gateway.schemas.generate import Guided
from service.gateway.schemas.openai import (
    ResponseFormat,
    SampledRequest,
    StructuredOutputs,
    TextOptions,
)
from service.gateway.tool_calls.tools import ToolForm, ToolSet

_ANY_OBJECT = {"type": "object"}
ANSWER = "the answer"


@dataclass(frozen=True)
class WantedForm:
    """A form, and the field that asks for it."""

    field: str
    guided: dict[str, Any] | Guided


def wanted_form(body: SampledRequest) -> WantedForm | None:
    """Return the form that a request asks for, None for any.

    Raises:
        InvalidRequest: It asks for several, or a schema is missing or not JSON.
    """
    found = [
        form
        for form in (
            _of_response_format(body.response_format),
            _of_structured_outputs(body.structured_outputs),
            _schema("guided_json", body.guided_json),
            _plain("guided_regex", "regex", body.guided_regex),
            _plain("guided_choice", "choice", body.guided_choice or None),
            _plain("guided_grammar", "grammar", body.guided_grammar),
        )
        if form is not None
    ]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[1].field}: {found[0].field} already says what form the answer must have: send "
            "one of the two",
            field=found[1].field,
        )
    return found[0] if found else None


def with_tools(
    form: WantedForm | None, tools: ToolSet | None, written: ToolForm
) -> WantedForm | None:
    """Return the form of an answer that may, or must, call tools.

    Raises:
        InvalidRequest: A form is wanted that leaves no room for calls.
    """
    if tools is None:
        return form
    if tools.forced:
        if form is not None:
            raise InvalidRequest(
                f"{form.field}: tool_choice says that the answer is a call: leave one of them out",
                field=form.field,
            )
        return WantedForm("tools", calls(written, tools))
    if form is None:
        return None
    guided = form.guided if isinstance(form.guided, dict) else {}
    schema = guided.get("json_schema", _ANY_OBJECT if "json_object" in guided else None)
    if schema is None:
        raise InvalidRequest(
            f"{form.field}: with tools the answer may be a call or JSON: leave one of them out",
            field=form.field,
        )
    strict = bool(guided.get("strict"))
    return WantedForm(form.field, calls(written, tools, or_json=schema, strict=strict))


def form_of_text(options: TextOptions | None) -> WantedForm | None:
    """Return the form that `text` of the Responses API asks for, None for any."""
    wanted = None if options is None else options.format
    if wanted is None:
        return None
    path = "text.format.schema"
    return _of_format(wanted.type, "text.format", path, wanted.schema_, wanted.strict)


def _of_response_format(wanted: ResponseFormat | None) -> WantedForm | None:
    if wanted is None:
        return None
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    strict = None if wanted.json_schema is None else wanted.json_schema.strict
    path = "response_format.json_schema.schema"
    return _of_format(wanted.type, "response_format", path, schema, strict)


def _of_format(
    kind: Literal["text", "json_object", "json_schema"],
    field: str,
    schema_field: str,
    schema: dict[str, Any] | None,
    strict: bool | None,
) -> WantedForm | None:
    match kind:
        case "text":
            return None
        case "json_object":
            return WantedForm(field, {"json_object": True})
        case "json_schema":
            return _named_schema(schema_field, schema, strict=bool(strict))


def _named_schema(field: str, schema: dict[str, Any] | None, *, strict: bool = False) -> WantedForm:
    """Return the form of JSON of this schema, which must be there."""
    if schema is None:
        raise InvalidRequest(f"{field} is missing: send the schema", field=field)
    return WantedForm(field, {"json_schema": schema, "strict": strict})


def _of_structured_outputs(wanted: StructuredOutputs | None) -> WantedForm | None:
    if wanted is None:
        return None
    found = [
        form
        for form in (
            _schema("structured_outputs.json", wanted.json_),
            _plain("structured_outputs.regex", "regex", wanted.regex),
            _plain("structured_outputs.choice", "choice", wanted.choice),
            _plain("structured_outputs.grammar", "grammar", wanted.grammar),
            _plain("structured_outputs.json_object", "json_object", wanted.json_object or None),
        )
        if form is not None
    ]
    if len(found) != 1:
        raise InvalidRequest(
            f"structured_outputs holds {len(found)} forms of an answer: send exactly one of json, "
            "json_object, regex, choice, grammar",
            field="structured_outputs",
        )
    return found[0]


def _schema(field: str, value: dict[str, Any] | str | None) -> WantedForm | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidRequest(f"{field} is not JSON: {error}", field=field) from error
        if not isinstance(value, dict):
            raise InvalidRequest(f"{field} must be a JSON schema, an object", field=field)
    return _named_schema(field, value)


def _plain(field: str, name: str, value: Any) -> WantedForm | None:
    return None if value is None else WantedForm(field, {name: value})


def calls(
    form: ToolForm, tools: ToolSet, *, or_json: dict[str, Any] | None = None, strict: bool = False
) -> Guided:
    """Return the form of one call of one of the tools, a grammar in llguidance's dialect of Lark.

    Args:
        form: In which the model writes calls.
        tools: Those that may be called.
        or_json: Schema of what the answer may be instead; None: it must be a call.
        strict: Whether this schema is refused where answers cannot be held to it in full.
    """
    rules = [f"opens: {_mark(form.opens)}", f"closes: {_mark(form.closes)}"]
    choices, schemas = [], {}
    for number, tool in enumerate(tools.callable):
        before, after = form.call_text(tool.name, "\0").split("\0")
        before = json.dumps(before.removeprefix(form.opens))
        after = json.dumps(after.removesuffix(form.closes))
        rules.append(f"call{number}: opens {before} args{number} {after} closes")
        rules.append(f"args{number}: %json @{tool.name}")
        choices.append(f"call{number}")
        schemas[tool.name] = {"type": "object", **(tool.parameters or {})}
    if or_json is not None:
        choices.append("other")
        rules.append(f"other: %json @{ANSWER}")
        schemas[ANSWER] = or_json
    text = "\n".join([f"start: {' | '.join(choices)}", *rules, ""])
    return Guided.of_schemas(text, schemas, [ANSWER] if strict else [])


def _mark(text: str) -> str:
    return f"@{json.dumps(text)}" if text else '""'
