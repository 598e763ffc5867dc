"""What a chat template does with tools, found out by rendering it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from service.errors import ModelRefused
from service.gateway.prompts.chat_template import ChatTemplate
from service.gateway.tool_calls.tools import Tool

_PROBE = Tool("kvstitch_probe", "probe")
_SYSTEM_MARK, _USER_MARK = "KVSTITCH-SYSTEM-TEXT", "KVSTITCH-USER-TEXT"
_PIECES = re.compile(rf"(\n|<[^<>\s]+>|\[/?[A-Z_]+\]|{_SYSTEM_MARK}|{_USER_MARK})")


def takes_tools(template: ChatTemplate) -> bool:
    """Whether it writes tools."""
    try:
        return _PROBE.name in tools_text(template, [_PROBE.definition])
    except ModelRefused:
        return False


def tools_text(template: ChatTemplate, definitions: list[dict[str, Any]]) -> str:
    """What a template writes with tools and does not write without, but for the marks of turns."""
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
    """The same conversation as if every call had been made, and answered, by itself."""
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
