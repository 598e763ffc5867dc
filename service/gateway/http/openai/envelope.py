"""What responses to OpenAI's clients have in common: usage, annotations, log-probabilities."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from urllib.parse import quote, urlencode

from fastapi import Response

from kvstitch.records.answers import (
    Answer,
    AnswerDetails,
    Citation,
    LikelyToken,
    PromptTokensDetails,
    TokenLogprob,
    Usage,
)
from kvstitch.service.gateway.http.openai.requests import TranslatedRequest
from kvstitch.service.gateway.schemas.openai_answers import (
    Annotation,
    ChatLogprobs,
    Details,
    FinishReason,
    TextLogprobs,
    UrlCitation,
)
from kvstitch.service.gateway.tool_calls.call_parser import CallParser

WARNINGS_HEADER = "X-Kvstitch-Warnings"
MAX_HEADER_CHARS = 2048


@dataclass(frozen=True)
class Envelope:
    """What all objects and chunks of one response hold."""

    id: str  # of its first answer
    asked: TranslatedRequest  # what it answers
    base: str  # address of this service as the client wrote it, with a slash at its end
    created: int = field(default_factory=lambda: int(time.time()))  # Unix seconds

    @property
    def bare_id(self) -> str:
        return self.id.removeprefix("rag-")

    @property
    def model(self) -> str:
        """The name that the client used."""
        return self.asked.body.model or self.asked.served.model

    @property
    def citations(self) -> bool:
        """Whether the answer holds citations."""
        chosen = self.asked.body.kvstitch
        return chosen is None or chosen.include_citations

    def parser(self) -> CallParser | None:
        """Return what finds an answer's calls, None where there can be none."""
        asked = self.asked
        if asked.tools is None:
            return None
        return CallParser(asked.served.tool_form, asked.tools, early=bool(asked.body.stream))

    def details(
        self, response: Answer, parser: CallParser | None, citations: list[Citation] | None = None
    ) -> Details:
        """Return the object `kvstitch` of an answer."""
        told = {field.name: getattr(response, field.name) for field in fields(AnswerDetails)}
        called = [] if parser is None else parser.warnings
        told["warnings"] = [*self.asked.notes, *response.warnings, *called]
        return Details(**told, citations=citations)

    def annotations(self, response: Answer, text: str) -> list[Annotation]:
        """Return an annotation for every sentence and passage that supports it.

        None at all if the spans do not hold for `text`, the message's: calls of tools may have been
        taken out of the answer's.
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
                    url=self._link(cited[index]),
                )
            )
            for sentence in response.attributions or []
            for index in sentence.citations
        ]

    def _link(self, citation: Citation) -> str:
        if citation.url is not None:
            return citation.url
        if citation.chunk_id < 0:
            return ""
        collection = self.asked.requests[0].collection
        query = f"?{urlencode({'collection': collection})}" if collection else ""
        return f"{self.base}admin/documents/{quote(citation.doc_id)}{query}"

    def usage(self, responses: Sequence[Answer]) -> Usage:
        """Return usage of all answers; a prompt that has several counts once, as OpenAI does."""
        per_prompt = len(responses) // self.asked.prompts
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


def warned(response: Response, notes: Sequence[str]) -> Response:
    """Return the response with its notes in a header as well: some clients read no other fields."""
    if notes:
        text = "; ".join(notes).encode("ascii", "backslashreplace").decode()
        told = "".join(char if " " <= char <= "~" else "?" for char in text)
        response.headers[WARNINGS_HEADER] = told[:MAX_HEADER_CHARS]
    return response


def finish_reason(reason: str, parser: CallParser | None = None) -> FinishReason:
    """Return the reason as OpenAI names it, who has no deadline: cut short counts as too long."""
    if reason != "stop":
        return "length"
    return "tool_calls" if parser is not None and parser.answer.calls else "stop"


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
