"""A request for an answer that came as a conversation, as OpenAI's routes take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import PrivateAttr

from service.gateway.schemas.generate import GenerateRequest
from service.gateway.tool_calls.tools import ToolSet
from service.prompt import Turn


class ConversationRequest(GenerateRequest):
    """A conversation with its tools; `question` is its last text of the user."""

    _turns: list[Turn] = PrivateAttr()
    _tools: ToolSet | None = PrivateAttr()

    @classmethod
    def of(cls, turns: Sequence[Turn], tools: ToolSet | None, **fields: Any) -> Self:
        """Make one; `fields` are those of GenerateRequest but for question and messages."""
        question = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
        out = cls(question=question, **fields)
        out._turns, out._tools = list(turns), tools
        return out

    @property
    def turns(self) -> list[Turn]:
        return self._turns

    @property
    def tools(self) -> ToolSet | None:
        return self._tools
