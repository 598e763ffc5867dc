"""Writes an answer's attribution into its response."""

from __future__ import annotations

import asyncio

from service.gateway.answers.attribution import attributor
from service.gateway.answers.attribution.marks import with_marks
from service.gateway.answers.prepared_request import PreparedRequest
from service.gateway.schemas.answer import Attribution, Citation, GenerateResponse


async def add_attribution(result: GenerateResponse, prepared: PreparedRequest, begun: str) -> None:
    """Say which passages support which sentences, as far as the request asks for it.

    An answer in a given form, such as JSON, has no sentences.

    Args:
        result: Gets attributions, marks in its text and warnings.
        prepared: The request.
        begun: The words with which the prompt has begun the answer.
    """
    request = prepared.request
    if request.guided is not None or not (request.attribute or request.cite != "none"):
        return
    found = await asyncio.to_thread(
        attributor.attribute,
        result.text,
        [(passage.chunk.title, passage.chunk.text) for passage in prepared.passages],
        prepared.question,
        begun=begun.strip(),
        marked=request.cite == "inline",
    )
    spans = [sentence.span for sentence in found.sentences]
    if request.cite == "marks":
        cited = [(sentence.span, sentence.citations) for sentence in found.sentences]
        result.text, spans = with_marks(result.text, cited)
    result.attributions = [
        Attribution(
            start=span.start,
            end=span.stop,
            citations=sentence.citations,
            score=round(sentence.score, 4),
            by=sentence.by,
        )
        for span, sentence in zip(spans, found.sentences, strict=True)
    ]
    result.citations = [_with_quote(c, found.quotes.get(c.index)) for c in result.citations]
    if found.unknown_marks:
        numbers = ", ".join(f"[{n}]" for n in dict.fromkeys(found.unknown_marks))
        result.warnings.append(f"the answer's marks {numbers} name no passage")


def _with_quote(citation: Citation, quote: attributor.Quote | None) -> Citation:
    if quote is None:
        return citation.model_copy(update={"used": False})
    return citation.model_copy(
        update={
            "used": True,
            "support": round(quote.score, 4),
            "quote_start": citation.char_start + quote.span.start,
            "quote_end": citation.char_start + quote.span.stop,
        }
    )
