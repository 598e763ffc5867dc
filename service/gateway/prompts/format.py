"""The prompt format of a model folder: its own, or derived from its chat template, or plain.

kvstitch.json          is used if it is there
chat template          is rendered once around a mark where the documents go, then split there:
                       ... user: instruction | documents | {question} ... assistant:
                       S                                   Q
neither                a plain completion format is used
"""

from __future__ import annotations

from dataclasses import fields, replace

from service.errors import KvstitchError, ModelRefused
from service.gateway.prompts.chat_template import ChatTemplate
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

# Unlikely in any template, and without characters that a template might escape or trim.
DOCUMENTS_MARK = "KVSTITCH-DOCUMENTS-GO-HERE"


def load_format(folder: ModelFolder) -> PromptFormat:
    """Return the prompt format of `folder`.

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
    """Return whether the folder has a prompt format of its own, in kvstitch.json."""
    return (folder.path / FORMAT_FILE).is_file()
