"""Writes a conversation as the prompt's Q: everything that comes after the documents.

    S                          D_1 … D_k    Q
    operator's instruction     documents    client's system text, earlier turns, last question,
                                            what a last system message adds to it

S is the operator's and the same for every request, because stored chunks may depend on it and
their keys hash it. A client's system message in S would give every conversation its own keys, so
it is written after the documents, as are the earlier turns.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvstitch.service.errors import InvalidRequest, ModelRefused
from kvstitch.service.gateway.prompts.model_folder import (
    DOCUMENTS_MARK,
    INSTRUCTION,
    ChatTemplate,
    ModelFolder,
)
from kvstitch.service.prompt import PromptFormat, Turn

CACHED_TEMPLATES = 256
LONGEST_CACHED = 64
"""Turns of a conversation whose template is kept."""
_TURN_PLACE = re.compile(r"\{t(\d+)\}")


def normalize_turns(turns: Sequence[Turn], *, continues: bool = False) -> list[Turn]:
    """Bring a conversation into the order that chat templates accept.

    Args:
        turns: As they were sent.
        continues: The answer goes on where the last turn, an assistant's, ends.

    Returns:
        At most one system turn, first; then user and assistant in turns, with what tools gave
        behind the assistant's calls. Neighbouring turns of one role are joined, because most
        templates refuse them; those of tools are not. The last one is the user's or a tool's, or
        the assistant's that is continued, or a system turn: agents say there what is to be done
        now. Where nobody else has spoken, that is the user's.

    Raises:
        InvalidRequest: There is nothing to be answered, or to be continued.
    """
    last = len(turns)
    while last and turns[last - 1].role == "system":
        last -= 1
    spoken, instructions = turns[:last], [turn for turn in turns[last:] if turn.text.strip()]
    if instructions and not question_of(spoken).strip():
        asked = Turn("user", instructions.pop().text)
        spoken, instructions = [*spoken, *instructions, asked], []
    sent = [*spoken, *instructions]
    end = sent[-1] if sent else None
    if continues and (end is None or end.role != "assistant" or end.calls):
        raise InvalidRequest(
            "continue_final_message: the last message must be an assistant's text, which the "
            "answer continues",
            field="continue_final_message",
        )
    if end is None or (end.role == "assistant" and not continues):
        why = (
            "the last one must be the user's, it is what is answered "
            "(continue_final_message: true continues an assistant's)"
        )
        raise InvalidRequest(f"messages: {why}", field="messages")
    if end.role == "user" and not end.text.strip():
        raise InvalidRequest("messages: the last one is empty: send its text", field="messages")
    if not question_of(spoken).strip():
        why = "none is the user's: send the one that is answered"
        raise InvalidRequest(f"messages: {why}", field="messages")
    out: list[Turn] = []
    # A stable sort: the system's turns come first.
    for turn in (*sorted(spoken, key=lambda turn: turn.role != "system"), *instructions):
        if out and out[-1].role == turn.role and turn.role != "tool":
            text = "\n\n".join(filter(None, (out[-1].text, turn.text)))
            out[-1] = Turn(turn.role, text, out[-1].calls + turn.calls)
        else:
            out.append(turn)
    return out


def question_of(turns: Sequence[Turn]) -> str:
    """Return what is answered, and what documents are searched for: the last text of the user."""
    return next((turn.text for turn in reversed(turns) if turn.role == "user"), "")


@dataclass(frozen=True)
class PlainConversationFormat:
    """Writes every user turn by the question template and every answer by the answer template."""

    fmt: PromptFormat

    def template(self, roles: tuple[str, ...]) -> str:
        """Return the template of Q for normalised turns, with {t0}, {t1}, … in their places."""
        out, end = "", len(roles) - 1
        for number, role in enumerate(roles):
            place = f"{{t{number}}}"
            if role == "system" and number == 0:
                out += f"{place}\n"
            elif role == "system" and roles[number - 1] == "user":
                continue  # written with the question
            elif role in ("user", "system"):
                instructed = number + 1 == end and roles[end] == "system"
                text = f"{place}\n\n{{t{end}}}" if instructed else place
                out += self.fmt.question.replace("{question}", text)
            elif number == end:  # goes on
                out += self.fmt.earlier_answer.partition("{answer}")[0] + place
            else:
                out += self.fmt.earlier_answer.replace("{answer}", place)
        return out


class ChatTemplateFormat:
    """Writes conversations by the model's chat template: documents are in the first user turn."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._cached = lru_cache(CACHED_TEMPLATES)(self._question_template)
        self._system = self._split(("user",))[0]

    def template(self, roles: tuple[str, ...]) -> str:
        """As `PlainConversationFormat`. Raises InvalidRequest: the template cannot write it."""
        made = self._cached if len(roles) <= LONGEST_CACHED else self._question_template
        return made(roles)

    def _question_template(self, roles: tuple[str, ...]) -> str:
        goes_on = roles[-1] == "assistant"
        system, question = self._split(roles[:-1] if goes_on else roles)
        if goes_on:
            question += f"{{t{len(roles) - 1}}}"
        written = Counter(turn_places(question))
        if system != self._system or any(written[n] != 1 for n in range(len(roles))):
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
    template = None if folder.has_own_format else folder.chat_template()
    if template is None:
        return PlainConversationFormat(fmt)
    return ChatTemplateFormat(ChatTemplate(template, folder))


def messages_around_documents(
    roles: Sequence[str], later_turn: Callable[[int], dict[str, Any]], before: str = ""
) -> list[dict[str, Any]]:
    """Messages for a chat template, with a mark where the documents go."""
    first = {"role": "user", "content": f"{INSTRUCTION}{DOCUMENTS_MARK}{before}"}
    messages: list[dict[str, Any]] = [first]
    open_turn = True
    for number, role in enumerate(roles):
        if open_turn and role == "system":
            first["content"] += f"{{t{number}}}\n\n"
        elif open_turn and role == "user":
            first["content"] += f"Question: {{t{number}}}"
            open_turn = False
        elif role == "system":
            instruct(messages, f"{{t{number}}}")
        else:
            messages.append(later_turn(number))
            open_turn = False
    return messages


def instruct(messages: list[dict[str, Any]], text: str) -> None:
    """Add what is to be done now to a conversation, as templates take it: as words of the user."""
    if messages[-1]["role"] == "user":
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": "user", "content": text})


def turn_places(template: str) -> list[int]:
    """Return the numbers of the turns whose places {t0}, {t1}, … a template holds, in its order."""
    return [int(found[1]) for found in _TURN_PLACE.finditer(template)]


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
    try:
        return template.render(messages, tools)
    except ModelRefused as error:
        raise InvalidRequest(
            f"messages: the model's chat template refuses this conversation: {error.message}",
            field="messages",
        ) from error
