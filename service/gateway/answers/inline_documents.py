"""Turns documents that come with a request into passages.

They are cut as stored documents are, and the same text gets the same chunk keys, so a second
request with a text finds its KV. They are not in the catalog: their chunk ids are negative and
mean something within one answer only.
"""

from __future__ import annotations

from collections.abc import Sequence

from retriever import Chunk, ChunkSettings, Passage
from service.errors import InvalidRequest, PromptTooLong
from service.gateway.prompts.prompt_builder import MAX_CHARS_PER_TOKEN, context_length
from service.gateway.schemas.generate import InlineDocument

FIRST_CHUNK_ID = -2  # -1 is the system prompt's


def inline_passages(
    documents: Sequence[InlineDocument], chunking: ChunkSettings, max_context: int
) -> list[Passage]:
    """Return every chunk of the documents, in order, with a score of 1: nothing was searched."""
    chars = sum(len(document.text) for document in documents)
    if chars > MAX_CHARS_PER_TOKEN * max_context:
        raise PromptTooLong(
            f"{context_length(max_context)} and inline_documents have {chars} characters: send "
            "less text",
            field="inline_documents",
        )
    out: list[Passage] = []
    seen: set[str] = set()
    for number, document in enumerate(documents):
        where = f"inline_documents[{number}]"
        if not document.text.strip():
            raise InvalidRequest(f"{where}.text is empty: send its text", field=f"{where}.text")
        doc_id = document.doc_id or f"inline-{number + 1}"
        if doc_id in seen:
            raise InvalidRequest(
                f"{where}.doc_id {doc_id!r} is another document's: citations could not tell them "
                "apart",
                field=f"{where}.doc_id",
            )
        seen.add(doc_id)
        for ordinal, span in enumerate(chunking.split(document.text, document.title)):
            chunk = Chunk(
                chunk_id=FIRST_CHUNK_ID - len(out),
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
