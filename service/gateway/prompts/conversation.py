"""Writes a conversation as the prompt's Q: everything that comes after the documents.

    S                          D_1 … D_k    Q
    operator's instruction     documents    client's system text, earlier turns, last question

S is the operator's and the same for every request, because stored chunks may depend on it and
their keys hash it. A client's system message in S would give every conversation its own keys, so
it is written after the documents, as are the earlier turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from service.errors import InvalidRequest, ModelRefused
from service.gateway.prompts.chat_template import ChatTemplate
from service.gateway.prompts.format import DOCUMENTS_MARK, INSTRUCTION, has_own_format
from service.gateway.prompts.model_folder import ModelFolder
from service.prompt import PromptFormat, Turn

CACHED_TEMPLATES = 256


def normalize_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Bring a conversation into the order that chat templates accept.

    Returns:
        At most one system turn, first; then user and assistant in turns, with what tools gave
        behind the assistant's calls; the last one is the user's or a tool's. Neighbouring turns of
        one role are joined, because most templates refuse them; those of tools are not.

    Raises:
        InvalidRequest: The last turn is neither the user's nor a tool's, or there is no question.
    """
    if not turns or turns[-1].role not in ("user", "tool"):
        raise InvalidRequest(
            "messages: the last one must be the user's, it is what is answered", field="messages"
        )
    if turns[-1].role == "user" and not turns[-1].text.strip():
        raise InvalidRequest("messages: the last one is empty: send its text", field="messages")
    if not question_of(turns).strip():
        raise InvalidRequest(
            "messages: none is the user's: send the one that tools are called for", field="messages"
        )
    ordered = [turn for turn in turns if turn.role == "system"]
    ordered += [turn for turn in turns if turn.role != "system"]
    out: list[Turn] = []
    for turn in ordered:
        if out and out[-1].role == turn.role and turn.role != "tool":
            out[-1] = _joined(out[-1], turn)
        else:
            out.append(turn)
    return out


def question_of(turns: Sequence[Turn]) -> str:
    """Return what is answered, and what documents are searched for: the last text of the user."""
    return next((turn.text for turn in reversed(turns) if turn.role == "user"), "")


def _joined(first: Turn, second: Turn) -> Turn:
    texts = (first.text, second.text)
    text = "\n\n".join(texts if all(texts) else filter(None, texts))
    return Turn(first.role, text, first.calls + second.calls)


@dataclass(frozen=True)
class PlainConversationFormat:
    """Writes every user turn by the question template and every answer by the answer template."""

    fmt: PromptFormat

    def template(self, roles: tuple[str, ...]) -> str:
        """Return the template of Q for normalised turns, with {t0}, {t1}, … in their places."""
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
    """Writes conversations by the model's chat template, with the documents in the first user turn:

    user: instruction | documents | system text, first question   assistant: …   user: …
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.template = lru_cache(CACHED_TEMPLATES)(self._question_template)
        self._system = self._split(("user",))[0]

    def _question_template(self, roles: tuple[str, ...]) -> str:
        system, question = self._split(roles)
        places = [f"{{t{number}}}" for number in range(len(roles))]
        if system != self._system or any(question.count(place) != 1 for place in places):
            raise not_written()
        return question

    def _split(self, roles: tuple[str, ...]) -> tuple[str, str]:
        """Return what the chat template writes before the documents, and after them."""

        def later_turn(number: int) -> dict[str, Any]:
            return {"role": roles[number], "content": f"{{t{number}}}"}

        messages = messages_around_documents(roles, later_turn)
        system, _, question = render_messages(self._template, messages).partition(DOCUMENTS_MARK)
        return system, question


ConversationFormat = PlainConversationFormat | ChatTemplateFormat


def conversation_format(fmt: PromptFormat, folder: ModelFolder) -> ConversationFormat:
    """Use the chat template if the prompt format came from it, else the format's own templates."""
    template = None if has_own_format(folder) else folder.chat_template()
    if template is None:
        return PlainConversationFormat(fmt)
    return ChatTemplateFormat(ChatTemplate(template, folder))


def messages_around_documents(
    roles: Sequence[str], later_turn: Callable[[int], dict[str, Any]], before: str = ""
) -> list[dict[str, Any]]:
    """Messages for a chat template, with a mark where the documents go.

    Args:
        roles: Of normalised turns; {t0}, {t1}, … stand for their texts.
        later_turn: Makes the message of a turn behind the first question.
        before: Text between the documents and the first turn.
    """
    first = {"role": "user", "content": f"{INSTRUCTION}{DOCUMENTS_MARK}{before}"}
    messages: list[dict[str, Any]] = [first]
    open_turn = True
    for number, role in enumerate(roles):
        if open_turn and role == "system":
            first["content"] += f"{{t{number}}}\n\n"
        elif open_turn and role == "user":
            first["content"] += f"Question: {{t{number}}}"
            open_turn = False
        else:
            messages.append(later_turn(number))
            open_turn = False
    return messages


def not_written() -> InvalidRequest:
    return InvalidRequest(
        "messages: the model's chat template does not write this conversation out: send the last "
        "message alone",
        field="messages",
    )


def render_messages(
    template: ChatTemplate,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
) -> str:
    """Return the text of a conversation.

    Raises:
        InvalidRequest: The template refuses it.
    """
    try:
        return template.render(messages, tools)
    except ModelRefused as error:
        raise InvalidRequest(
            f"messages: the model's chat template refuses this conversation: {error.message}",
            field="messages",
        ) from error
