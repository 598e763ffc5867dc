"""The tools of a request, and the forms in which models write calls of them.

    hermes       <tool_call>{"name": "f", "arguments": {…}}</tool_call>       Qwen, Hermes, SmolLM3
                 <tool_call>[{"name": …}, {"name": …}]</tool_call>            SmolLM2
    llama3_json  {"name": "f", "parameters": {…}}; {…}    the whole answer    Llama 3.1 and newer
    mistral      [TOOL_CALLS] [{"name": "f", "arguments": {…}}]               Mistral
                 [TOOL_CALLS]f{…}, [TOOL_CALLS]f[ARGS]{…}                     newer ones

A chat template shows which form its model writes. Models whose template knows no tools are told of
them in the Hermes form, which most models have seen.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kvstitch.service.prompt import ToolCall

NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"


@dataclass(frozen=True)
class Tool:
    """A function that an answer may call; `parameters` is the JSON schema of what it takes."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None

    @property
    def definition(self) -> dict[str, Any]:
        """As OpenAI and chat templates write it."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        parameters = self.parameters or {"type": "object"}
        # Many templates write out the properties and cannot do without.
        function["parameters"] = {**parameters, "properties": parameters.get("properties", {})}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolSet:
    """The tools of a request, at least one; the answer calls the one that is `named`, some where
    they are `required`, and several at once if that may be `parallel`."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required"] = "auto"
    named: str | None = None
    parallel: bool = True

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.named is not None or self.choice == "required"

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Those that the answer may call."""
        return tuple(tool for tool in self.tools if self.named in (None, tool.name))

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable)

    @cached_property
    def text(self) -> str:
        """All definitions as JSON: equal texts are equal tools."""
        return json.dumps([tool.definition for tool in self.tools], ensure_ascii=False)


@dataclass(frozen=True)
class ToolForm:
    """A form in which models write calls."""

    name: str
    opens: str  # text before calls; empty: a call is the whole answer
    closes: str  # text after calls; empty: nothing
    arguments: str = "arguments"  # name of the field that holds the arguments
    bare_names: bool = False  # whether a call may be the name itself with the arguments behind it
    id_length: int = 0  # characters that ids must have in the model's chat template; 0: any number

    def call_text(self, name: str, arguments: str) -> str:
        """Return a call as the model should write it."""
        call = f'{{"name": {json.dumps(name)}, "{self.arguments}": {arguments}}}'
        inner = f"[{call}]" if self.bare_names else call
        return f"{self.opens}{inner}{self.closes}"

    def history_text(self, calls: Sequence[ToolCall]) -> str:
        """Write earlier calls, for models whose chat template knows none."""
        return "\n".join(self.call_text(call.name, call.arguments) for call in calls)

    def tools_text(self, tools: Sequence[Tool]) -> str:
        """Describe the tools, for a model whose chat template knows none."""
        listed = "\n".join(json.dumps(tool.definition, ensure_ascii=False) for tool in tools)
        example = self.call_text("NAME", "{…}").replace('"NAME"', "NAME")
        return (
            "You may call functions. These are the functions, as JSON schemas:\n"
            f"<tools>\n{listed}\n</tools>\n"
            f"To call one, answer with nothing but its name and arguments in this form:\n{example}"
        )


def result_text(text: str) -> str:
    """Return a function's result as text, for models whose chat template knows no such message."""
    return f"<tool_response>\n{text}\n</tool_response>"


HERMES = ToolForm("hermes", "<tool_call>", "</tool_call>")
LLAMA3_JSON = ToolForm("llama3_json", "", "", arguments="parameters")
MISTRAL = ToolForm("mistral", "[TOOL_CALLS]", "", bare_names=True, id_length=9)
FORMS = {form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL)}


def form_of(template: str | None) -> ToolForm:
    """Return the form that a chat template teaches; Hermes where it teaches none."""
    if template is None or "tools" not in template:
        return HERMES
    if MISTRAL.opens in template:
        return MISTRAL
    teaches_json = '"parameters":' in template or "python_tag" in template
    return LLAMA3_JSON if teaches_json and HERMES.opens not in template else HERMES


def template_id(id: str, form: ToolForm) -> str:
    """Return the id of a call; one of the form's length made from it, where ids have a length."""
    length = form.id_length
    if not length or (len(id) == length and id.isalnum()):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:length]
