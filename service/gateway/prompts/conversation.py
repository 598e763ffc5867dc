"""A conversation as the prompt's Q: everything that comes behind the documents.

    S                          D_1..D_k     Q
    operator's instruction     documents    client's system text, earlier turns, last question

S is the operator's and the same for every request: chunks may be stored behind it, and their keys
hash it. A system message of a client would give every conversation keys of its own, so it is
written behind the documents, as are the earlier turns. Knows no tokenizer, request or retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from service.errors import InvalidRequest, ModelRefused
from service.gateway.prompts.format import INSTRUCTION, MARK, has_own_format, render
from service.gateway.prompts.model_folder import ModelFolder
from service.prompt import PromptFormat, Turn

ROLES = ("system", "user", "assistant")


def normalize_turns(turns: Sequence[Turn]) -> list[Turn]:
    """One system turn at most, in front; then user and assistant in turns; the user's last.

    Turns of one role in a row are joined: most templates take no others.
    Raises InvalidRequest if the user does not speak last, or says nothing.
    """
    if not turns or turns[-1].role != "user":
        raise InvalidRequest(
            "messages: the last one must be the user's, it is what is answered", field="messages"
        )
    if not turns[-1].text.strip():
        raise InvalidRequest("messages: the last one is empty: send its text", field="messages")
    ordered = [turn for turn in turns if turn.role == "system"]
    ordered += [turn for turn in turns if turn.role != "system"]
    out: list[Turn] = []
    for turn in ordered:
        if out and out[-1].role == turn.role:
            out[-1] = Turn(turn.role, f"{out[-1].text}\n\n{turn.text}")
        else:
            out.append(turn)
    return out


class ConversationFormat(Protocol):
    """How a model writes conversations."""

    def template(self, roles: tuple[str, ...]) -> str:
        """Q for turns of these `normalised` roles, with {t0}, {t1}, … for their texts.

        Raises InvalidRequest if the model has no form for them.
        """
        ...


def conversation_format(fmt: PromptFormat, folder: ModelFolder) -> ConversationFormat:
    """By the chat template where the format came from it, else by the format's own pieces."""
    template = None if has_own_format(folder) else folder.chat_template()
    return (
        PlainConversationFormat(fmt) if template is None else ChatTemplateFormat(template, folder)
    )


@dataclass(frozen=True)
class PlainConversationFormat:
    """Every user turn as the format's question, every answer as its answer."""

    fmt: PromptFormat

    def template(self, roles: tuple[str, ...]) -> str:
        out = ""
        for number, role in enumerate(roles):
            place = f"{{t{number}}}"
            if role == "system":
                out += f"{place}\n"
            elif role == "user":
                out += self.fmt.question.replace("{question}", place)
            else:
                out += self.fmt.earlier_answer.replace("{answer}", place)
        return out


class ChatTemplateFormat:
    """Rendered by the chat template, documents in the first user turn:

    user: instruction | documents | system text, first question   assistant: …   user: …
    """

    def __init__(self, template: str, folder: ModelFolder) -> None:
        self._template = template
        self._folder = folder
        self.template = lru_cache(256)(self._render)
        self._system = self._split(("user",))[0]

    def _render(self, roles: tuple[str, ...]) -> str:
        system, question = self._split(roles)
        places = [f"{{t{number}}}" for number in range(len(roles))]
        if system != self._system or any(question.count(place) != 1 for place in places):
            raise InvalidRequest(
                "messages: the model's chat template does not write this conversation out: send "
                "the last message alone",
                field="messages",
            )
        return question

    def _split(self, roles: tuple[str, ...]) -> tuple[str, str]:
        messages = [{"role": "user", "content": f"{INSTRUCTION}{MARK}"}]
        for number, role in enumerate(roles):
            text = f"{{t{number}}}"
            if len(messages) == 1 and role == "system":
                messages[0]["content"] += f"{text}\n\n"
            elif len(messages) == 1 and role == "user":
                messages[0]["content"] += f"Question: {text}"
                messages.append({"role": "", "content": ""})  # the first turn is full
            else:
                messages.append({"role": role, "content": text})
        messages = [message for message in messages if message["role"]]
        try:
            rendered = render(self._template, messages, self._folder)
        except ModelRefused as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses this conversation: {error.message}",
                field="messages",
            ) from error
        system, _, question = rendered.partition(MARK)
        return system, question
