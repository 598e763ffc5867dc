"""The tools of a request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

MAX_TOOLS = 128
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"


@dataclass(frozen=True)
class Tool:
    """A function.

    Attributes:
        name: Of letters, digits, `_`, `.` and `-`.
        description: What it does; empty: not told.
        parameters: JSON schema of the object that it takes; None: not told.
    """

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
    """The tools of a request, and how the answer may use them.

    Attributes:
        tools: At least one.
        choice: `auto`: the model decides; `required`: it must call one.
        named: The only one that it must call; None: any.
        parallel: Whether it may call several at once.
    """

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
