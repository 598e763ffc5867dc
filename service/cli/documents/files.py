"""Reads files into documents that can be sent.

A document that cannot be read becomes an UnsendableDocument, and the others are not affected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.cli.documents.folder import (
    EMPTY,
    SkippedFile,
    SourceFile,
    UnsendableDocument,
    unreadable,
)
from service.gateway.documents.parsing.file_kinds import media_type_of_suffix

ROW = "application/x-ndjson"
_FIELDS = ("title", "metadata", "collection")
# Characters that change when they are in a file's name in a form.
_UNSENDABLE = '"\\'


@dataclass(frozen=True)
class DocumentToSend:
    """A document that can be sent.

    Attributes:
        doc_id: Its name.
        media_type: The file's; ROW for one line of JSON.
        content: The file's bytes, or the line.
        collection: The collection that a line names; else empty.
    """

    doc_id: str
    media_type: str
    content: bytes
    collection: str = ""


Read = DocumentToSend | UnsendableDocument | SkippedFile


def count(sources: Sequence[SourceFile]) -> int:
    """Return how many documents the files hold; lines are counted, not parsed."""
    total = 0
    for source in sources:
        if not source.lines:
            total += 1
            continue
        try:
            with source.path.open("rb") as file:
                total += sum(1 for line in file if line.strip()) or 1
        except OSError:
            total += 1
    return total


def read(sources: Sequence[SourceFile], metadata: dict[str, Any]) -> Iterator[Read]:
    """Read the documents of files.

    Args:
        sources: From `scan`.
        metadata: Added to documents from lines; their own metadata takes precedence.

    Yields:
        Every document, and a file of lines that has none. A document whose doc_id came before in
        the same collection is unsendable, because it would silently replace the earlier one.
    """
    seen: dict[tuple[str, str], str] = {}
    for source in sources:
        for document in _lines(source, metadata) if source.lines else [_file(source)]:
            if isinstance(document, DocumentToSend):
                name = (document.collection, document.doc_id)
                if name in seen:
                    yield UnsendableDocument(
                        document.doc_id,
                        f"{source.path}: this doc_id is already that of {seen[name]}; ingest them "
                        "as one folder, or rename one",
                        "its doc_id is that of another",
                    )
                    continue
                seen[name] = str(source.path)
            yield document


def _file(source: SourceFile) -> DocumentToSend | UnsendableDocument:
    path, doc_id = source.path, source.doc_id
    try:
        doc_id.encode()
    except UnicodeEncodeError:
        message = f"{path}: its name is not valid UTF-8; rename it"
        return UnsendableDocument(doc_id, message, "its name is not valid UTF-8")
    if not doc_id.isprintable() or any(char in doc_id for char in _UNSENDABLE):
        message = f"{path}: its name has quotes or control characters; rename it"
        return UnsendableDocument(doc_id, message, "its name has quotes or control characters")
    try:
        content = path.read_bytes()
    except OSError as error:
        return unreadable(doc_id, path, error)
    media_type = media_type_of_suffix().get(path.suffix.lower(), "text/plain")
    return DocumentToSend(doc_id, media_type, content)


def _lines(source: SourceFile, metadata: dict[str, Any]) -> Iterator[Read]:
    some = False
    try:
        with source.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    some = True
                    yield _line(f"{source.path}, line {number}", line, metadata)
    except OSError as error:
        yield unreadable(source.doc_id, source.path, error)
        return
    if not some:
        yield SkippedFile(str(source.path), EMPTY)


def _line(place: str, line: bytes, metadata: dict[str, Any]) -> DocumentToSend | UnsendableDocument:
    try:
        args = json.loads(line.decode("utf-8-sig"))
        row = {"doc_id": args["doc_id"], "text": args["text"]}
        row |= {name: args[name] for name in _FIELDS if args.get(name) is not None}
        if metadata:
            row["metadata"] = {**metadata, **row.get("metadata", {})}
        content = json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return UnsendableDocument(
            place,
            f"{place}: expected an object with doc_id and text ({error!r})",
            "a line that is no object with doc_id and text",
        )
    return DocumentToSend(str(row["doc_id"]), ROW, content, str(row.get("collection", "")))
