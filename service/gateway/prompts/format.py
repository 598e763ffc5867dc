"""The prompt format of a model folder: its own, or derived from its chat template, or plain.

    kvstitch.json          wins
    chat template          rendered once around a mark where the documents go, then split there:
                           ... user: instruction | documents | {question} ... assistant:
                           S                                   Q
    neither                a plain completion format

Knows no request and encodes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, NoReturn

from service.errors import KvstitchError, ModelRefused
from service.gateway.prompts.model_folder import ModelFolder
from service.prompt import FORMAT_FILE, PromptFormat

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

# Some templates write today's date. S must not change from day to day: chunks may be stored behind
# it. This is the day such templates fall back to.
_DAY = datetime(2024, 7, 26)

# Unlikely in any template, and without characters that a template might escape or trim.
MARK = "KVSTITCH-DOCUMENTS-GO-HERE"


def load_format(folder: ModelFolder) -> PromptFormat:
    """The format of `folder`. Raises ModelRefused if what is there cannot be used."""
    try:
        own = PromptFormat.load(folder.path)
    except (KvstitchError, ValueError, TypeError, KeyError) as error:
        known = ", ".join(f.name for f in fields(PromptFormat))
        raise ModelRefused(
            f"{folder.path / FORMAT_FILE} cannot be used: {error} (it holds `prompt` with system, "
            f"document and question, and any of: {known})"
        ) from error
    if own is not None:
        _check(own, folder)
        return own
    template = folder.chat_template()
    return PLAIN if template is None else from_chat_template(template, folder)


def from_chat_template(template: str, folder: ModelFolder) -> PromptFormat:
    """S and Q from the template around one user turn. Raises ModelRefused if it has no such turn.

    The text is used as rendered: its special tokens are encoded as such, user text is not.
    """
    content = f"{INSTRUCTION}{MARK}Question: {{question}}"
    rendered = render(template, [{"role": "user", "content": content}], folder)
    if rendered.count(MARK) != 1 or rendered.count("{question}") != 1:
        raise ModelRefused(
            f"the chat template of {folder.path} does not repeat the user's text exactly once: "
            f"write the prompt format into {FORMAT_FILE}"
        )
    system, question = rendered.split(MARK)
    return PromptFormat(system=system, document=DOCUMENT, question=question)


def without_bos(fmt: PromptFormat, bos_text: str | None) -> PromptFormat:
    """`fmt` whose S does not begin with the BOS text, which the encoder puts there itself."""
    if bos_text and fmt.system.startswith(bos_text):
        return replace(fmt, system=fmt.system.removeprefix(bos_text))
    return fmt


def _check(fmt: PromptFormat, folder: ModelFolder) -> None:
    if (
        "{text}" not in fmt.document
        or "{question}" not in fmt.question
        or "{answer}" not in fmt.earlier_answer
    ):
        raise ModelRefused(
            f"{folder.path / FORMAT_FILE}: prompt.document must hold {{text}}, prompt.question "
            "{question}, and prompt.answer, where it is given, {answer}"
        )


def has_own_format(folder: ModelFolder) -> bool:
    """Whether the folder says itself how its prompts are written."""
    return (folder.path / FORMAT_FILE).is_file()


def render(template: str, messages: Sequence[Mapping[str, str]], folder: ModelFolder) -> str:
    """The text the model's chat template makes of `messages`. Raises ModelRefused."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _DAY.strftime
    specials = {
        name: folder.special_text(name) or ""
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
    }
    try:
        return environment.from_string(template).render(
            messages=messages,
            add_generation_prompt=True,
            tools=None,
            documents=None,
            enable_thinking=False,
            **specials,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ModelRefused(
            f"the chat template of {folder.path} cannot be rendered ({error}): write the prompt "
            f"format into {FORMAT_FILE}"
        ) from error


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
