"""Renders the chat template of a model folder, as transformers does.

What a template does with tools is found out by rendering it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from service.errors import ModelRefused
from service.gateway.prompts.model_folder import ModelFolder
from service.gateway.tool_calls.tools import Tool
from service.prompt import FORMAT_FILE

if TYPE_CHECKING:
    from jinja2 import Template

# Some templates write today's date. S must not change from day to day, because stored chunks may
# depend on it. This is the date that such templates fall back to.
_DATE = datetime(2024, 7, 26)
_PROBE = Tool("kvstitch_probe", "probe")
_SYSTEM_MARK, _USER_MARK = "KVSTITCH-SYSTEM-TEXT", "KVSTITCH-USER-TEXT"
_PIECES = re.compile(rf"(\n|<[^<>\s]+>|\[/?[A-Z_]+\]|{_SYSTEM_MARK}|{_USER_MARK})")


class ChatTemplate:
    """The chat template of a model."""

    def __init__(self, source: str, folder: ModelFolder) -> None:
        self.source = source
        self._folder = folder

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the text of a conversation with a generation prompt at the end."""
        from jinja2 import TemplateError

        specials = {
            name: self._folder.special_text(name) or ""
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        try:
            return self._compiled.render(
                messages=messages,
                add_generation_prompt=True,
                tools=tools,
                documents=None,
                enable_thinking=False,
                **specials,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ModelRefused(
                f"the chat template of {self._folder.path} cannot be rendered ({error}): write the "
                f"prompt format into {FORMAT_FILE}"
            ) from error

    @cached_property
    def _compiled(self) -> Template:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _DATE.strftime
        return environment.from_string(self.source)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def takes_tools(template: ChatTemplate) -> bool:
    """Return whether a template writes tools."""
    try:
        return _PROBE.name in tools_text(template, [_PROBE.definition])
    except ModelRefused:
        return False


def tools_text(template: ChatTemplate, definitions: list[dict[str, Any]]) -> str:
    """Return what a template writes only because of tools, without the marks of turns."""
    messages = [
        {"role": "system", "content": _SYSTEM_MARK},
        {"role": "user", "content": _USER_MARK},
    ]
    try:
        without = template.render(messages)
    except ModelRefused:  # no system messages
        messages = messages[1:]
        without = template.render(messages)
    before = _PIECES.split(without)
    after = _PIECES.split(template.render(messages, definitions))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    marks = {piece for piece in before if _PIECES.fullmatch(piece) and piece != "\n"}
    parts = [
        "".join(piece for piece in after[start:end] if piece not in marks)
        for kind, _, _, start, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
    ]
    return "\n".join(part for part in parts if part.strip()).strip()


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the same conversation as if every call had been made, and answered, by itself."""
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool"}
    out: list[dict[str, Any]] = []
    split: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls", [])
        if len(calls) > 1:
            for number, call in enumerate(calls):
                content = message["content"] if number == 0 else ""
                out.append({**message, "content": content, "tool_calls": [call]})
                if call["id"] in results:
                    out.append(results[call["id"]])
                    split.add(call["id"])
        elif message["role"] != "tool" or message["tool_call_id"] not in split:
            out.append(message)
    return out
