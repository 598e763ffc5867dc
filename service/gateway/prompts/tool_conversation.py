"""Writes conversations with tools.

                          template that takes tools             any other model
    tools                 as the template writes them           as text (tool_calls.forms)
    calls, their results  as the template writes them           as text of assistant and user

    with documents        S | D_1 … D_k | tools, client's system text, turns, last question
    without any           the template's own text, nothing before it

S is the same for every request, so the tools stand behind the documents, where a client's system
text stands. Where there are no documents, nothing depends on S, and the prompt is exactly what the
model was trained on.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kvstitch.service.errors import InvalidRequest, ModelRefused
from kvstitch.service.gateway.prompts.conversation import (
    ConversationFormat,
    instruct,
    messages_around_documents,
    normalize_turns,
    not_written,
    render_messages,
    turn_places,
)
from kvstitch.service.gateway.prompts.model_folder import (
    DOCUMENTS_MARK,
    INSTRUCTION,
    ChatTemplate,
    ModelFolder,
)
from kvstitch.service.gateway.tool_calls.tools import (
    FORMS,
    HERMES,
    ToolForm,
    ToolSet,
    form_of,
    result_text,
    template_id,
)
from kvstitch.service.prompt import Turn

CACHED_TOOLS = 64
_IN_JSON = re.compile(r'"\{t(\d+)\}"')  # of a template that writes results as JSON
_NAMES = r"\{(?:[tx]\d+|tools)\}"


@dataclass(frozen=True)
class WrittenText:
    """A template, and the texts that its {names} stand for."""

    template: str
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlainToolConversation:
    """Writes tools, calls and results as text."""

    form: ToolForm
    plain: ConversationFormat
    template: ChatTemplate | None

    def question(self, turns: Sequence[Turn], tools: ToolSet | None) -> WrittenText:
        """Return Q of a normalised conversation, to stand behind documents."""
        written = self._as_text(turns, tools)
        template = self.plain.template(tuple(turn.role for turn in written))
        return WrittenText(template, _texts(written))

    def alone(self, turns: Sequence[Turn], tools: ToolSet | None) -> WrittenText | None:
        """Return the whole prompt of one without documents; None: it is S and `question`."""
        if self.template is None:
            return None
        written = self._as_text(turns, tools)
        messages = _messages(written, lambda n: {"role": written[n].role, "content": f"{{t{n}}}"})
        try:
            rendered = self.template.render(messages) + _going_on(written)
        except ModelRefused:  # many templates know no system messages
            return None
        complete = set(turn_places(rendered)) >= set(range(len(written)))
        return WrittenText(rendered, _texts(written)) if complete else None

    def _as_text(self, turns: Sequence[Turn], tools: ToolSet | None) -> list[Turn]:
        out = [] if tools is None else [Turn("system", self.form.tools_text(tools.tools))]
        for turn in turns:
            if turn.role == "tool":
                out.append(Turn("user", result_text(turn.text)))
            elif turn.calls:
                parts = (turn.text, self.form.history_text(turn.calls))
                out.append(Turn(turn.role, "\n".join(filter(None, parts))))
            else:
                out.append(turn)
        return normalize_turns(out, continues=turns[-1].role == "assistant")


class TemplateToolConversation:
    """Writes tools, calls and results by a chat template that takes tools."""

    def __init__(
        self, form: ToolForm, template: ChatTemplate, added_texts: Collection[str]
    ) -> None:
        self.form = form
        self._template = template
        self._added_texts = added_texts
        self._described = lru_cache(CACHED_TOOLS)(self._describe)
        first = [{"role": "user", "content": f"{INSTRUCTION}{DOCUMENTS_MARK}Question: q"}]
        self._system = template.render(first).partition(DOCUMENTS_MARK)[0]

    def question(self, turns: Sequence[Turn], tools: ToolSet | None) -> WrittenText:
        """As `PlainToolConversation`. Raises InvalidRequest: the template cannot write it."""
        protected = ProtectedText(self._added_texts)
        described = self._described(tools.text) if tools else WrittenText("")
        protected.texts |= described.texts
        writer = _MessageWriter(self.form, turns, protected)
        roles = [turn.role for turn in turns]
        messages = messages_around_documents(
            roles[:-1] if roles[-1] == "assistant" else roles,
            writer.message,
            before="{tools}\n\n" if tools else "",
        )
        rendered = self._rendered(messages, None) + _going_on(turns)
        system, _, question = rendered.partition(DOCUMENTS_MARK)
        if system != self._system:
            raise not_written()
        question = question.replace("{tools}", described.template, 1)
        return WrittenText(question, protected.texts | self._own_texts(question, turns))

    def alone(self, turns: Sequence[Turn], tools: ToolSet | None) -> WrittenText | None:
        protected = ProtectedText(self._added_texts)
        definitions = None if tools is None else protected.protect(json.loads(tools.text))
        messages = _messages(turns, _MessageWriter(self.form, turns, protected).message)
        rendered = self._rendered(messages, definitions) + _going_on(turns)
        return WrittenText(rendered, protected.texts | self._own_texts(rendered, turns))

    def _rendered(
        self, messages: list[dict[str, Any]], definitions: list[dict[str, Any]] | None
    ) -> str:
        try:
            return render_messages(self._template, messages, definitions)
        except InvalidRequest:
            if all(len(message.get("tool_calls", ())) < 2 for message in messages):
                raise
            # Llama 3's takes one call at a time.
            return render_messages(self._template, one_call_each(messages), definitions)

    def _own_texts(self, written: str, turns: Sequence[Turn]) -> dict[str, str]:
        """Return the turns' texts, as they are to stand in what was written."""
        texts = _texts(turns)
        counts = Counter(turn_places(written))
        in_json = set(_IN_JSON.findall(written))
        for number, turn in enumerate(turns):
            count = counts[number]
            # Some templates drop the text beside calls.
            if count > 1 or (turn.text and not count and not turn.calls):
                raise not_written()
            if turn.role == "tool" and str(number) in in_json:
                texts[f"t{number}"] = json.dumps(turn.text, ensure_ascii=False)[1:-1]
        return texts

    def _describe(self, definitions: str) -> WrittenText:
        """Return what the template writes because of these tools, wherever it writes it."""
        protected = ProtectedText(self._added_texts)
        text = self._template.tools_text(protected.protect(json.loads(definitions)))
        return WrittenText(text, protected.texts)


class _MessageWriter:
    """Writes turns as messages for a chat template, with {t0}, {t1}, … for their texts."""

    def __init__(self, form: ToolForm, turns: Sequence[Turn], protected: "ProtectedText") -> None:
        self._form, self._turns, self._protected = form, turns, protected
        called = [call for turn in turns for call in turn.calls]
        self._names = {call.id: call.name for call in reversed(called)}  # of equal ids the first

    def message(self, number: int) -> dict[str, Any]:
        turn = self._turns[number]
        content = f"{{t{number}}}" if turn.text else ""
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": template_id(call.id, self._form),
                    "type": "function",
                    "function": self._protected.protect(
                        {"name": call.name, "arguments": json.loads(call.arguments)}
                    ),
                }
                for call in turn.calls
            ]
        if turn.role == "tool":
            message["name"] = self._protected.protect(self._names.get(turn.call_id, ""))
            message["tool_call_id"] = template_id(turn.call_id, self._form)
        return message


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


def _messages(
    turns: Sequence[Turn], write: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages of a conversation that is answered; one that goes on is left out."""
    messages: list[dict[str, Any]] = []
    end = len(turns) - 1
    for number, turn in enumerate(turns):
        if turn.role == "system" and number == end and messages:
            instruct(messages, f"{{t{number}}}")
        elif turn.role != "assistant" or number != end:
            messages.append(write(number))
    return messages


def _going_on(turns: Sequence[Turn]) -> str:
    """Return the place of an assistant's turn that the answer continues; else nothing."""
    return f"{{t{len(turns) - 1}}}" if turns[-1].role == "assistant" else ""


def tool_conversation(
    plain: ConversationFormat, folder: ModelFolder, added_texts: Collection[str], form: str
) -> PlainToolConversation | TemplateToolConversation:
    """Choose how conversations with tools are written for the model of a folder."""
    source = None if folder.has_own_format else folder.chat_template(tools=True)
    template, chosen = ChatTemplate(source, folder) if source else None, FORMS.get(form)
    if template is None or not template.takes_tools:
        return PlainToolConversation(chosen or HERMES, plain, template)
    return TemplateToolConversation(chosen or form_of(source), template, added_texts)


def _texts(turns: Sequence[Turn]) -> dict[str, str]:
    return {f"t{number}": turn.text for number, turn in enumerate(turns)}


class ProtectedText:
    """Keeps clients' texts apart from the template that they are written into."""

    def __init__(self, added_texts: Collection[str]) -> None:
        longest_first = sorted((text for text in added_texts if text.strip()), key=len)[::-1]
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), _NAMES]))
        self.texts: dict[str, str] = {}

    def protect(self, value: Any) -> Any:
        """Return the value with all its strings, and keys, safe."""
        if isinstance(value, str):
            return self._pattern.sub(self._name, value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.protect(item) for item in value]
        return value

    def _name(self, found: re.Match[str]) -> str:
        name = f"x{len(self.texts)}"
        self.texts[name] = found[0]
        return f"{{{name}}}"
