"""What form an answer must have, from OpenAI's and vLLM's fields to `guided`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidRequest
from service.gateway.schemas.openai.common import ResponseFormat, SampledRequest, StructuredOutputs
from service.gateway.tool_calls.closed_schema import closed
from service.gateway.tool_calls.forced_call import call_grammar
from service.gateway.tool_calls.forms import ToolForm
from service.gateway.tool_calls.tools import ToolSet

_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class WantedForm:
    """A form, and the field that asks for it."""

    field: str
    guided: dict[str, Any]


def wanted_form(body: SampledRequest) -> WantedForm | None:
    """The form that a request asks for; None: any.

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
    """The form of an answer that may, or must, call tools.

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
        return WantedForm("tools", {"grammar": call_grammar(written, tools)})
    if form is None:
        return None
    schema = form.guided.get("json_schema", _ANY_OBJECT if "json_object" in form.guided else None)
    if schema is None:
        raise InvalidRequest(
            f"{form.field}: with tools the answer may be a call or JSON: leave one of them out",
            field=form.field,
        )
    grammar = call_grammar(written, tools, or_json=schema)
    return WantedForm(form.field, {"grammar": grammar})


def _of_response_format(wanted: ResponseFormat | None) -> WantedForm | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return WantedForm("response_format", {"json_object": True})
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    return named_schema("response_format.json_schema.schema", schema)


def named_schema(field: str, schema: dict[str, Any] | None) -> WantedForm:
    """JSON of a schema, which must be there."""
    if schema is None:
        raise InvalidRequest(f"{field} is missing: send the schema", field=field)
    return WantedForm(field, {"json_schema": closed(schema)})


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
    return named_schema(field, value)


def _plain(field: str, name: str, value: Any) -> WantedForm | None:
    return None if value is None else WantedForm(field, {name: value})
