"""Attributions as OpenAI's clients know them: url_citation annotations of a message.

The link is the URL in the document's metadata, else the document in this service, which takes a key
that may administer. A document that came with the question has no link.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from service.gateway.schemas.answer import Citation, GenerateResponse
from service.gateway.schemas.openai.chat import Annotation, UrlCitation


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


def url_annotations(
    response: GenerateResponse, links: DocumentLinks, text: str
) -> list[Annotation]:
    """One for every sentence and passage that supports it.

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
