"""What a model's folder says beside the weights: JSON files, the chat template, the prompt format.

kvstitch.json          is the prompt format if it is there
chat template          is rendered once around a mark where the documents go, then split there:
                       ... user: instruction | documents | {question} ... assistant:
                       S                                   Q
neither                a plain completion format is used
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kvstitch.service.errors import KvstitchError, ModelRefused
from kvstitch.service.gateway.tool_calls.tools import Tool
from kvstitch.service.prompt import FORMAT_FILE, PromptFormat

if TYPE_CHECKING:
    from jinja2 import Template


class ModelFolder:
    """Read access to the JSON files beside the weights; a missing file reads as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def has_own_format(self) -> bool:
        """Whether the prompt format is the folder's own, in kvstitch.json."""
        return (self.path / FORMAT_FILE).is_file()

    @cached_property
    def created(self) -> int:
        """When the model was saved, in Unix seconds; 0 if that is not known."""
        file = self.path / "config.json"
        return int(file.stat().st_mtime) if file.is_file() else 0

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self._json("tokenizer_config.json")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        for file in ("generation_config.json", "config.json"):
            ids = self._json(file).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
        return frozenset()

    def special_text(self, name: str) -> str | None:
        """Return the text of `bos_token`, `eos_token`, …; None if the model has no such token."""
        token = self.tokenizer_config.get(name)
        # A string, or an object that describes an added token.
        text = token.get("content") if isinstance(token, dict) else token
        return str(text) if text else None

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the model's chat template, None if it has none; with `tools` the one for
        conversations with them, where the model has one of its own."""
        names = ["additional_chat_templates/tool_use.jinja"] if tools else []
        for name in (*names, "chat_template.jinja"):
            file = self.path / name
            if file.is_file():
                return file.read_text(encoding="utf-8")
        found = self.tokenizer_config.get("chat_template")
        if isinstance(found, list):  # several templates with names
            named = {t.get("name"): t.get("template") for t in found}
            found = (named.get("tool_use") if tools else None) or named.get("default")
        return str(found) if found else None

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        if not file.is_file():
            return {}
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelRefused(f"{file} cannot be read: {error}") from error
        return content if isinstance(content, dict) else {}


# Some templates write today's date. S must not change from day to day, because stored chunks may
# depend on it. This is the date that such templates fall back to.
_DATE = datetime(2024, 7, 26)
_PROBE = Tool("kvstitch_probe", "probe")
_SYSTEM_MARK, _USER_MARK = "KVSTITCH-SYSTEM-TEXT", "KVSTITCH-USER-TEXT"
_PIECES = re.compile(rf"(\n|<[^<>\s]+>|\[/?[A-Z_]+\]|{_SYSTEM_MARK}|{_USER_MARK})")


class ChatTemplate:
    """Renders a model's chat template, as transformers does."""

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

    @property
    def takes_tools(self) -> bool:
        """Whether it writes tools, which is found out by rendering it."""
        try:
            return _PROBE.name in self.tools_text([_PROBE.definition])
        except ModelRefused:
            return False

    def tools_text(self, definitions: list[dict[str, Any]]) -> str:
        """Return what it writes only because of tools, without the marks of turns."""
        messages = [
            {"role": "system", "content": _SYSTEM_MARK},
            {"role": "user", "content": _USER_MARK},
        ]
        try:
            without = self.render(messages)
        except ModelRefused:  # no system messages
            messages = messages[1:]
            without = self.render(messages)
        before = _PIECES.split(without)
        after = _PIECES.split(self.render(messages, definitions))
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        marks = {piece for piece in before if _PIECES.fullmatch(piece) and piece != "\n"}
        parts = [
            "".join(piece for piece in after[start:end] if piece not in marks)
            for kind, _, _, start, end in matcher.get_opcodes()
            if kind in ("insert", "replace")
        ]
        return "\n".join(part for part in parts if part.strip()).strip()

    @cached_property
    def _compiled(self) -> "Template":
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


INSTRUCTION = (
    "Answer the question using the documents below. Answer briefly, and say so if the documents "
    "do not contain the answer.\n\n"
)
DOCUMENT = "{title}\n{text}\n\n"

PLAIN = PromptFormat(
    system=INSTRUCTION,
    document=DOCUMENT,
    question="Question: {question}\nAnswer:",
    stop=("\n\n", "\nQuestion:"),
)

# Unlikely in any template, and without characters that a template might escape or trim.
DOCUMENTS_MARK = "KVSTITCH-DOCUMENTS-GO-HERE"


def load_format(folder: ModelFolder) -> PromptFormat:
    """Return the prompt format of `folder`. Raises ModelRefused: its kvstitch.json or its chat
    template cannot be used."""
    try:
        own = PromptFormat.load(folder.path)
    except (KvstitchError, ValueError, TypeError, KeyError) as error:
        known = ", ".join(f.name for f in fields(PromptFormat))
        raise ModelRefused(
            f"{folder.path / FORMAT_FILE} cannot be used: {error} (it holds `prompt` with system, "
            f"document and question, and any of: {known})"
        ) from error
    if own is not None:
        answer = own.earlier_answer
        if not ("{text}" in own.document and "{question}" in own.question and "{answer}" in answer):
            raise ModelRefused(
                f"{folder.path / FORMAT_FILE}: prompt.document must hold {{text}}, prompt.question "
                "{question}, and prompt.answer, where it is given, {answer}"
            )
        return own
    template = folder.chat_template()
    return PLAIN if template is None else from_chat_template(template, folder)


def from_chat_template(template: str, folder: ModelFolder) -> PromptFormat:
    """Take S and Q from a chat template rendered for one user turn.

    The rendered text is used as it is: its special tokens are encoded as special tokens. Raises
    ModelRefused: the template does not write the user's text exactly once.
    """
    content = f"{INSTRUCTION}{DOCUMENTS_MARK}Question: {{question}}"
    rendered = ChatTemplate(template, folder).render([{"role": "user", "content": content}])
    if rendered.count(DOCUMENTS_MARK) != 1 or rendered.count("{question}") != 1:
        raise ModelRefused(
            f"the chat template of {folder.path} does not repeat the user's text exactly once: "
            f"write the prompt format into {FORMAT_FILE}"
        )
    system, question = rendered.split(DOCUMENTS_MARK)
    return PromptFormat(system=system, document=DOCUMENT, question=question)


def without_bos(fmt: PromptFormat, bos_text: str | None) -> PromptFormat:
    """`fmt` without BOS text at the start of S, because the encoder adds BOS itself."""
    if bos_text and fmt.system.startswith(bos_text):
        return replace(fmt, system=fmt.system.removeprefix(bos_text))
    return fmt
