"""Documents that come with a request, as passages. Knows no catalog, worker or HTTP.

They are cut like stored ones and have the same chunk keys for the same text, so that the second
request with a text finds its KV. Only the catalog does not know them: their chunk ids are negative
and mean something within one answer only.
"""

from __future__ import annotations

from collections.abc import Sequence

from retriever import Chunk, ChunkSettings, Passage
from service.errors import InvalidRequest
from service.gateway.schemas.generate import InlineDocument

FIRST_ID = -2  # -1 is the system prompt's


def passages(documents: Sequence[InlineDocument], chunking: ChunkSettings) -> list[Passage]:
    """All of them, in order; the score is 1, nothing was searched.

    Raises InvalidRequest; retriever.errors.InvalidDocument if a title leaves no room for text.
    """
    out: list[Passage] = []
    names: set[str] = set()
    for number, document in enumerate(documents):
        where = f"inline_documents[{number}]"
        if not document.text.strip():
            raise InvalidRequest(f"{where}.text is empty: send its text", field=f"{where}.text")
        doc_id = document.doc_id or f"inline-{number + 1}"
        if doc_id in names:
            raise InvalidRequest(
                f"{where}.doc_id {doc_id!r} is another document's: citations could not tell them "
                "apart",
                field=f"{where}.doc_id",
            )
        names.add(doc_id)
        for ordinal, span in enumerate(chunking.split(document.text, document.title)):
            chunk = Chunk(
                chunk_id=FIRST_ID - len(out),
                doc_id=doc_id,
                ordinal=ordinal,
                text=document.text[span.start : span.end],
                title=document.title,
                char_start=span.start,
                char_end=span.end,
                tokens=span.tokens,
                revision="",
            )
            out.append(Passage(chunk, 1.0))
    return out
