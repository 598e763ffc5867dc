"""What responses to OpenAI's clients have in common: ids, usage, annotations, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from kvstitch.records.answers import (
    Answer,
    Citation,
    LikelyToken,
    PromptTokensDetails,
    TokenLogprob,
    Usage,
)
from service.gateway.schemas.openai.chat import (
    Annotation,
    ChatLogprobs,
    FinishReason,
    TextLogprobs,
    UrlCitation,
)
from service.gateway.schemas.openai.common import Details
from service.gateway.tool_calls.call_parser import CallParser
from service.gateway.tool_calls.tools import ToolForm, ToolSet


@dataclass(frozen=True)
class DocumentLinks:
    """Links to documents of one collection.

    Attributes:
        base: Address of this service as the client wrote it, with a slash at its end.
        collection: None: the default one.
    """

    base: str
    collection: str | None

    def of(self, citation: Citation) -> str:
        if citation.url is not None:
            return citation.url
        if citation.chunk_id < 0:
            return ""
        query = f"?{urlencode({'collection': self.collection})}" if self.collection else ""
        return f"{self.base}admin/documents/{quote(citation.doc_id)}{query}"


def url_annotations(response: Answer, links: DocumentLinks, text: str) -> list[Annotation]:
    """Return an annotation for every sentence and passage that supports it.

    Args:
        response: The answer.
        links: To its documents.
        text: The message's; calls of tools may have been taken out of the answer's.

    Returns:
        None at all if the spans do not hold for `text`.
    """
    if text != response.text:
        return []
    cited = {citation.index: citation for citation in response.citations}
    return [
        Annotation(
            url_citation=UrlCitation(
                start_index=sentence.start,
                end_index=sentence.end,
                title=cited[index].title or cited[index].doc_id,
                url=links.of(cited[index]),
            )
        )
        for sentence in response.attributions or []
        for index in sentence.citations
    ]


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
        """Return what finds an answer's calls, None where there can be none."""
        if self.tools is None:
            return None
        return CallParser(self.tool_form, self.tools, early=early)

    def details(
        self,
        response: Answer,
        parser: CallParser | None,
        citations: list[Citation] | None = None,
    ) -> Details:
        """Return the object `kvstitch` of an answer."""
        names = Details.model_fields.keys() - {"citations", "warnings"}
        fields: dict[str, Any] = {name: getattr(response, name) for name in names}
        warnings = [*self.notes, *response.warnings, *([] if parser is None else parser.warnings)]
        return Details(citations=citations, warnings=warnings, **fields)


def finish_reason(reason: str, parser: CallParser | None = None) -> FinishReason:
    """Return the reason as OpenAI names it, who has no deadline: cut short counts as too long."""
    if reason != "stop":
        return "length"
    return "tool_calls" if parser is not None and parser.answer.calls else "stop"


def total_usage(responses: Sequence[Answer], prompts: int) -> Usage:
    """Return usage of all answers; a prompt that has several counts once, as OpenAI does."""
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


def chat_logprobs(logprobs: list[TokenLogprob] | None) -> ChatLogprobs | None:
    return None if logprobs is None else ChatLogprobs(content=logprobs)


def text_logprobs(logprobs: Sequence[TokenLogprob] | None) -> TextLogprobs | None:
    if logprobs is None:
        return None
    return TextLogprobs(
        tokens=[_name(one) for one in logprobs],
        token_logprobs=[one.logprob for one in logprobs],
        top_logprobs=[_top(one) for one in logprobs],
        text_offset=[one.text_offset for one in logprobs],
    )


def _top(token: TokenLogprob) -> dict[str, float]:
    """Return log-probabilities by name, likeliest first; of tokens with one name the likeliest."""
    found: dict[str, float] = {}
    for one in [*token.top_logprobs, token]:
        found.setdefault(_name(one), one.logprob)
    return found


def _name(token: LikelyToken) -> str:
    """Return a token's text, or its bytes if these are no text: parts of characters stay apart."""
    if token.bytes is None:
        return token.token
    data = bytes(token.bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
