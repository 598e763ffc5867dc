"""The prompt format of a model folder: its own, or derived from its chat template, or plain.

kvstitch.json          is used if it is there
chat template          is rendered once around a mark where the documents go, then split there:
                       ... user: instruction | documents | {question} ... assistant:
                       S                                   Q
neither                a plain completion format is used
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

# Some templates write today's date. S must not change from day to day, because stored chunks may
# depend on it. This is the date that such templates fall back to.
_DATE = datetime(2024, 7, 26)

# Unlikely in any template, and without characters that a template might escape or trim.
DOCUMENTS_MARK = "KVSTITCH-DOCUMENTS-GO-HERE"


def load_format(folder: ModelFolder) -> PromptFormat:
    """The prompt format of `folder`.

    Raises:
        ModelRefused: Its kvstitch.json or its chat template cannot be used.
    """
    try:
        own = PromptFormat.load(folder.path)
    except (KvstitchError, ValueError, TypeError, KeyError) as error:
        known = ", ".join(f.name for f in fields(PromptFormat))
        raise ModelRefused(
            f"{folder.path / FORMAT_FILE} cannot be used: {error} (it holds `prompt` with system, "
            f"document and question, and any of: {known})"
        ) from error
    if own is not None:
        _check_placeholders(own, folder)
        return own
    template = folder.chat_template()
    return PLAIN if template is None else from_chat_template(template, folder)


def from_chat_template(template: str, folder: ModelFolder) -> PromptFormat:
    """Take S and Q from a chat template rendered for one user turn.

    The rendered text is used as it is: its special tokens are encoded as special tokens.

    Raises:
        ModelRefused: The template does not write the user's text exactly once.
    """
    content = f"{INSTRUCTION}{DOCUMENTS_MARK}Question: {{question}}"
    rendered = render_chat_template(template, [{"role": "user", "content": content}], folder)
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


def _check_placeholders(fmt: PromptFormat, folder: ModelFolder) -> None:
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
    """Whether the folder has a prompt format of its own, in kvstitch.json."""
    return (folder.path / FORMAT_FILE).is_file()


def render_chat_template(
    template: str, messages: Sequence[Mapping[str, str]], folder: ModelFolder
) -> str:
    """Render a chat template, as transformers does, with a generation prompt at the end.

    Raises:
        ModelRefused: The template has an error, or refuses these messages.
    """
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _DATE.strftime
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
