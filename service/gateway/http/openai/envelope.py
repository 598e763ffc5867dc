"""What all parts of a response to an OpenAI client have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.gateway.http.openai.annotations import DocumentLinks
from service.gateway.schemas.answer import Citation, GenerateResponse, PromptTokensDetails, Usage
from service.gateway.schemas.openai.common import Details
from service.gateway.tool_calls.call_parser import CallParser
from service.gateway.tool_calls.forms import ToolForm
from service.gateway.tool_calls.tools import ToolSet

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Envelope:
    """One response.

    Attributes:
        id: Of its first answer.
        model: The name that the client used.
        chat: Chat completion, else text completion.
        citations: Whether the answer holds citations.
        links: To the documents that it cites.
        tool_form: In which the model writes calls.
        tools: That the answers may call.
        notes: For the client, about its request.
        prompts: How many prompts the choices answer.
        created: Unix seconds.
    """

    id: str
    model: str
    chat: bool
    citations: bool
    links: DocumentLinks
    tool_form: ToolForm
    tools: ToolSet | None = None
    notes: Sequence[str] = ()
    prompts: int = 1
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def public_id(self) -> str:
        """The id with OpenAI's prefix."""
        return ("chatcmpl-" if self.chat else "cmpl-") + self.bare_id

    @property
    def bare_id(self) -> str:
        return self.id.removeprefix("rag-")

    def parser(self, *, early: bool) -> CallParser | None:
        """Finds an answer's calls; None where there can be none."""
        if self.tools is None:
            return None
        return CallParser(self.tool_form, self.tools, early=early)

    def details(
        self,
        response: GenerateResponse,
        parser: CallParser | None,
        citations: list[Citation] | None = None,
    ) -> Details:
        """The object `kvstitch` of an answer."""
        names = Details.model_fields.keys() - {"citations", "warnings"}
        fields: dict[str, Any] = {name: getattr(response, name) for name in names}
        warnings = [*self.notes, *response.warnings, *([] if parser is None else parser.warnings)]
        return Details(citations=citations, warnings=warnings, **fields)


def finish_reason(reason: str, parser: CallParser | None = None) -> FinishReason:
    """OpenAI has no deadline: an answer that one cut short counts as too long."""
    if reason != "stop":
        return "length"
    return "tool_calls" if parser is not None and parser.answer.calls else "stop"


def total_usage(responses: Sequence[GenerateResponse], prompts: int) -> Usage:
    """Usage of all answers; a prompt that has several counts once, as OpenAI does."""
    per_prompt = len(responses) // prompts
    asked = [response.usage for response in responses[::per_prompt]]
    prompt_tokens = sum(usage.prompt_tokens for usage in asked)
    completion_tokens = sum(response.usage.completion_tokens for response in responses)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in asked)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )
