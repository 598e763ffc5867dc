"""Documents as they are sent, as lines of JSON or as files: the same rules for both."""

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from kvstitch.service.errors import BodyTooLarge, InvalidRequest, MalformedBody
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from kvstitch.service.gateway.json_content import (
    NOT_UTF8,
    from_validation,
    has_more_values,
    validated,
)
from kvstitch.service.gateway.schemas.admin import DocumentIn
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.gateway.search.search_query import readers_of, writers_of

# In JSON every character of a document may take six bytes (\u0041), and its metadata some more.
JSON_BYTES_PER_BYTE = 6
JSON_LINE_EXTRA_BYTES = 65_536
MAX_CHARSET_CHARS = 40  # names of charsets have at most 30


def line_limit(document_bytes: int) -> int:
    """Return the most bytes of a line of JSON, where a document may have `document_bytes`."""
    return JSON_BYTES_PER_BYTE * document_bytes + JSON_LINE_EXTRA_BYTES


def parse_line(line: bytes, number: int, max_values: int) -> DocumentIn:
    """Return the document of a line of NDJSON, None of an empty one; raises InvalidRequest."""
    place = f"line {number}"
    if has_more_values(line, max_values):
        raise BodyTooLarge(
            f"{place} holds more than {max_values} values: split the document", field=place
        )
    try:
        content = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedBody(f"{place} {NOT_UTF8}", field=place) from error
    except (ValueError, RecursionError) as error:
        raise MalformedBody(f"{place} is not valid JSON: {error}", field=place) from error
    try:
        return DocumentIn.model_validate(content)
    except ValidationError as error:
        cause = from_validation(error.errors(include_url=False), DocumentIn)
        raise InvalidRequest(f"{place}: {cause.message}", field=cause.field or place) from None


def json_document(
    document: DocumentIn,
    collection: str,
    readers: Sequence[str] = (),
    writers: Sequence[str] | None = None,
) -> IngestDocument:
    """Return a document that is sent as JSON, for a collection and, if it names none, readers and
    writers."""
    return IngestDocument(
        document.doc_id,
        collection,
        "text",
        document.text.encode(),
        document.title,
        document.metadata,
        readers=readers_of(readers if document.readers is None else document.readers),
        writers=writers_of(writers if document.writers is None else document.writers),
    )


def file_document(
    name: str,
    collection: str,
    kind: str,
    content: bytes | SpooledFile,
    *,
    title: str,
    metadata: dict[str, Any],
    readers: Sequence[str] = (),
    writers: Sequence[str] | None = None,
    charset: str = "",
) -> IngestDocument:
    """Return an uploaded file as a document; raises InvalidRequest."""
    name = composed(name)
    if kind == "text" and not title:
        title = PurePath(name).stem
    # Validated as if it came in JSON, so that the same rules hold for names and metadata.
    fields = {"doc_id": name, "text": "", "title": title, "metadata": metadata}
    named = {"collection": collection, "readers": list(readers), "writers": writers}
    checked = validated({**fields, **named}, DocumentIn)
    return IngestDocument(
        checked.doc_id,
        collection,
        kind,
        content,
        checked.title,
        checked.metadata,
        charset=charset[:MAX_CHARSET_CHARS],
        readers=readers_of(checked.readers or ()),
        writers=writers_of(checked.writers),
    )


def split_readers(text: str) -> list[str]:
    """Return the groups of a parameter or a form's field, in which commas stand between them."""
    return [group.strip() for group in text.split(",")] if text.strip() else []
