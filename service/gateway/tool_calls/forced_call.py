"""The grammar of an answer that must be a call, or may be nothing but a call or a certain JSON."""

from __future__ import annotations

import json
from typing import Any

from service.gateway.tool_calls.closed_schema import closed
from service.gateway.tool_calls.forms import ToolForm
from service.gateway.tool_calls.tools import Tool, ToolSet

# Compact JSON: with blanks allowed, small models write little else.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A tool's schema was not written for this service: what cannot be enforced is left to the model.
_LENIENT = {**_COMPACT, "lenient": True}


def call_grammar(form: ToolForm, tools: ToolSet, *, or_json: dict[str, Any] | None = None) -> str:
    """A grammar, in llguidance's dialect of Lark, for one call of one of the tools.

    Args:
        form: In which the model writes calls.
        tools: Those that may be called.
        or_json: Schema of what the answer may be instead; None: it must be a call.
    """
    rules = [_call_rule(number, tool, form) for number, tool in enumerate(tools.callable)]
    choices = [f"call{number}" for number in range(len(rules))]
    if or_json is not None:
        choices.append("other")
        rules.append(f"other: %json {_schema(or_json, _COMPACT)}")
    return "\n".join([f"start: {' | '.join(choices)}", *rules])


def _call_rule(number: int, tool: Tool, form: ToolForm) -> str:
    before, after = form.call_text(tool.name, "\0").split("\0")
    parameters = {"type": "object", **(tool.parameters or {})}
    arguments = f"args{number}"
    return (
        f"call{number}: {json.dumps(before)} {arguments} {json.dumps(after)}\n"
        f"{arguments}: %json {_schema(parameters, _LENIENT)}"
    )


def _schema(schema: dict[str, Any], options: dict[str, Any]) -> str:
    return json.dumps({**closed(schema), "x-guidance": options})
