"""What form an answer must have: OpenAI's and vLLM's fields, and calls of tools, to `guided`."""

import json
from dataclasses import dataclass
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.schemas.generate import Guided
from kvstitch.service.gateway.schemas.openai import (
    ResponseFormat,
    SampledRequest,
    StructuredOutputs,
    TextFormat,
    TextOptions,
)
from kvstitch.service.gateway.tool_calls.tools import ToolForm, ToolSet

_ANY_OBJECT = {"type": "object"}
ANSWER = "the answer"


@dataclass(frozen=True)
class WantedForm:
    """A form, and the field that asks for it."""

    field: str
    guided: dict[str, Any] | Guided


def wanted_form(body: SampledRequest) -> WantedForm | None:
    """Return the form that a request asks for, None for any. Raises InvalidRequest: it asks for
    several, or a schema is missing or not JSON."""
    found = [
        *_of_format("response_format", body.response_format),
        *_of_structured_outputs(body.structured_outputs),
        *_of_value("guided_json", "json", body.guided_json),
        *_of_value("guided_regex", "regex", body.guided_regex),
        *_of_value("guided_choice", "choice", body.guided_choice or None),
        *_of_value("guided_grammar", "grammar", body.guided_grammar),
    ]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[1].field}: {found[0].field} already says what form the answer must have: send "
            "one of the two",
            field=found[1].field,
        )
    return found[0] if found else None


def form_of_text(options: TextOptions | None, field: str = "text.format") -> WantedForm | None:
    """Return the form that `text` of the Responses API, or what is like it, asks for, None for any;
    `field`: where its format stands."""
    found = [] if options is None else _of_format(field, options.format)
    return found[0] if found else None


def with_tools(
    form: WantedForm | None, tools: ToolSet | None, written: ToolForm, notes: list[str]
) -> WantedForm | None:
    """Return the form of an answer that may, or must, call tools; `notes` are for the client.
    Raises InvalidRequest: a form is wanted that leaves no room for calls."""
    if tools is None:
        return form
    if tools.forced:
        if form is not None:
            notes.append(f"{form.field} has no effect: tool_choice says that the answer is a call")
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


def _of_format(field: str, wanted: ResponseFormat | TextFormat | None) -> list[WantedForm]:
    """Return the form that OpenAI's field asks for, if there is one."""
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [WantedForm(field, {"json_object": True})]
    if isinstance(wanted, ResponseFormat):
        described, field = wanted.json_schema, f"{field}.json_schema"
    else:
        described = wanted
    if described is None or described.schema_ is None:
        raise InvalidRequest(f"{field}.schema is missing: send the schema", field=f"{field}.schema")
    guided = {"json_schema": described.schema_, "strict": bool(described.strict)}
    return [WantedForm(f"{field}.schema", guided)]


def _of_structured_outputs(wanted: StructuredOutputs | None) -> list[WantedForm]:
    """Return the form that vLLM's field asks for, if there is one."""
    if wanted is None:
        return []
    found = [
        *_of_value("structured_outputs.json", "json", wanted.json_),
        *_of_value("structured_outputs.regex", "regex", wanted.regex),
        *_of_value("structured_outputs.choice", "choice", wanted.choice),
        *_of_value("structured_outputs.grammar", "grammar", wanted.grammar),
        *_of_value("structured_outputs.json_object", "json_object", wanted.json_object or None),
    ]
    if len(found) != 1:
        raise InvalidRequest(
            f"structured_outputs holds {len(found)} forms of an answer: send exactly one of json, "
            "json_object, regex, choice, grammar",
            field="structured_outputs",
        )
    return found


def _of_value(field: str, kind: str, value: Any) -> list[WantedForm]:
    """Return the form of a field that holds it as it is; a schema may be JSON text."""
    if value is None:
        return []
    if kind != "json":
        return [WantedForm(field, {kind: value})]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidRequest(f"{field} is not JSON: {error}", field=field) from error
        if not isinstance(value, dict):
            raise InvalidRequest(f"{field} must be a JSON schema, an object", field=field)
    return [WantedForm(field, {"json_schema": value, "strict": False})]


def calls(
    form: ToolForm, tools: ToolSet, *, or_json: dict[str, Any] | None = None, strict: bool = False
) -> Guided:
    """Return the form of one call of one of the tools, a grammar in llguidance's dialect of Lark.
    `or_json`: schema of what the answer may be instead (None: it must be a call); `strict`: it is
    refused where answers cannot be held to it in full."""
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
        if (
            schemas[tool.name]["type"] != "object"
        ):  # arguments are one; if none can be, that is told
            schemas[tool.name] = {"allOf": [schemas[tool.name], {"type": "object"}]}
    if or_json is not None:
        choices.append("other")
        rules.append(f"other: %json @{ANSWER}")
        schemas[ANSWER] = or_json
    text = "\n".join([f"start: {' | '.join(choices)}", *rules, ""])
    return Guided.of_schemas(text, schemas, [ANSWER] if strict else [])


def _mark(text: str) -> str:
    return f"@{json.dumps(text)}" if text else '""'
