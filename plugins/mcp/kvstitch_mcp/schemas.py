"""Arguments and results of the tools that agents call over MCP. Descriptions are for models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue

from kvstitch.records.answers import FoundPassage
from kvstitch.service.gateway.schemas.fields import DocId, StrictModel, Unicode

MAX_TEXT_CHARS = 200_000

Collection = Annotated[Unicode | None, Field(description="name of the collection; none: `default`")]
Filter = Annotated[
    dict[str, JsonValue] | None,
    Field(
        description="only documents whose metadata passes: {'lang': 'en'}, {'year': {'gte': 2020}}"
        "; operators eq ne in nin gt gte lt lte prefix contains exists; also and, or, not"
    ),
]


class Places(StrictModel):
    """Where passages are searched for."""

    collection: Collection = None
    top_k: int | None = Field(None, ge=1, description="passages wanted; none: a few")
    documents: Annotated[list[DocId], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="only passages of these documents, by doc_id"
    )
    filter: Filter = None


class SearchArguments(Places):
    query: Unicode = Field(description="what is searched for, in the user's words")


class AskArguments(Places):
    question: Unicode = Field(description="one question, complete in itself")
    max_tokens: int | None = Field(None, ge=1, description="of the answer; none: the default")


class DocumentsArguments(StrictModel):
    collection: Collection = None
    doc_id: DocId | None = Field(None, description="give the text of this one; none: list them")
    named: str = Field("", max_length=512, description="list those whose id or title holds this")
    filter: Filter = None
    limit: int = Field(50, ge=1, le=1000, description="documents listed at a time")
    cursor: str | None = Field(None, description="`next_cursor` of the list so far")
    offset: int = Field(0, ge=0, description="first character of the text that is given")
    max_chars: int = Field(20_000, ge=1, le=MAX_TEXT_CHARS, description="of the text, at a time")


class Passage(BaseModel):
    """A passage of a document: characters `start` to `end` of its text."""

    index: int = Field(description="from 1; [1] in an answer means this one")
    doc_id: str
    title: str
    page: str | None = Field(None, description="page, slide or sheet on which it begins")
    heading: str | None = None
    start: int
    end: int
    score: float
    text: str | None = None
    url: str | None = None
    used: bool | None = Field(None, description="whether a sentence of the answer rests on it")
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, found: FoundPassage) -> Passage:
        """Return a passage of a search or an answer as agents see it."""
        shared = {name: value for name, value in vars(found).items() if name in cls.model_fields}
        return cls(start=found.char_start, end=found.char_end, **shared)


class FoundPassages(BaseModel):
    """Passages, best first."""

    passages: list[Passage]
    ranked_by: str = Field(description="what scores are")
    warnings: list[str]


class CitedAnswer(BaseModel):
    """An answer from documents; [1] stands behind sentences that citation 1 supports."""

    answer: str
    citations: list[Passage]
    finish_reason: str = Field(description="`stop`, or `length`: cut off by max_tokens")
    warnings: list[str]


class ListedDocument(BaseModel):
    doc_id: str
    title: str
    chars: int
    metadata: dict[str, Any]


class DocumentPart(ListedDocument):
    """A document's text from `offset`; `next_offset` is where the rest begins."""

    text: str
    offset: int
    next_offset: int | None = None


class Documents(BaseModel):
    """A list of documents, or the text of one."""

    documents: list[ListedDocument] | None = None
    next_cursor: str | None = None
    document: DocumentPart | None = None
