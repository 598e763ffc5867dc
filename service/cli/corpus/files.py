"""Turns files, folders and patterns into documents that can be sent.

A document that cannot be read becomes an UnsendableDocument, and the others are not affected.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cli.service_client import WrongArgument
from service.gateway.corpus.parsing.file_kinds import (
    MEDIA_TYPE_OF_SUFFIX,
    UTF8_KINDS,
    file_kind,
)

LINES = (".jsonl", ".ndjson")
SUFFIXES = (*MEDIA_TYPE_OF_SUFFIX, *LINES)
ROW = "application/x-ndjson"
_FIELDS = ("title", "metadata", "collection")
# Characters that change when they are in a file's name in a form.
_UNSENDABLE = '"\\'


@dataclass(frozen=True)
class SourceFile:
    """A file, and its document's name; a file of lines names its documents itself."""

    path: Path
    doc_id: str

    @property
    def lines(self) -> bool:
        return self.path.suffix.lower() in LINES


@dataclass(frozen=True)
class DocumentToSend:
    """A document that can be sent.

    Attributes:
        doc_id: Its name.
        media_type: Of the file; ROW for one line of JSON.
        content: The file's bytes, or the line.
        collection: Of a line that names one; else empty.
    """

    doc_id: str
    media_type: str
    content: bytes
    collection: str = ""


@dataclass(frozen=True)
class UnsendableDocument:
    """A document that cannot be read, or that the service has refused, and why."""

    doc_id: str
    message: str


def find(paths: Sequence[str]) -> tuple[list[SourceFile], int]:
    """Find files by paths, folders and patterns.

    Returns:
        The files, and how many files of other kinds the folders hold. A doc_id is the path
        relative to the folder, or to the fixed part of the pattern.

    Raises:
        CommandError: A path does not exist, or a pattern matches no file.
    """
    found: dict[Path, SourceFile] = {}
    others = 0
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.is_file()]
            known = [file for file in inside if file.suffix.lower() in SUFFIXES]
            others += len(inside) - len(known)
            chosen = [SourceFile(file, file.relative_to(path).as_posix()) for file in known]
        elif path.exists() or not glob.has_magic(text):
            if not path.exists():
                raise WrongArgument(f"{text} cannot be read: there is no such file or folder")
            chosen = [SourceFile(path, path.name)]
        else:
            chosen = _matching(text)
        for source in chosen:
            found.setdefault(source.path.resolve(), source)
    return list(found.values()), others


def _matching(pattern: str) -> list[SourceFile]:
    fixed: list[str] = []
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    root = Path(*fixed)
    files = [Path(f) for f in sorted(glob.glob(pattern, recursive=True)) if Path(f).is_file()]
    if not files:
        raise WrongArgument(f"{pattern} matches no file")
    return [SourceFile(file, file.relative_to(root).as_posix()) for file in files]


def count(sources: Sequence[SourceFile]) -> int:
    """How many documents the files hold; lines are counted, not parsed."""
    total = 0
    for source in sources:
        if not source.lines:
            total += 1
            continue
        try:
            with source.path.open("rb") as file:
                total += sum(1 for line in file if line.strip())
        except OSError:
            total += 1
    return total


def read(
    sources: Sequence[SourceFile], metadata: dict[str, Any]
) -> Iterator[DocumentToSend | UnsendableDocument]:
    """Read the documents of files.

    Args:
        sources: From `find`.
        metadata: Added to documents from lines; their own metadata takes precedence.

    Yields:
        Every document. One whose doc_id came before in the same collection is unsendable, because
        it would silently replace the earlier one.
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
                    )
                    continue
                seen[name] = str(source.path)
            yield document


def _file(source: SourceFile) -> DocumentToSend | UnsendableDocument:
    path, doc_id = source.path, source.doc_id
    try:
        doc_id.encode()
    except UnicodeEncodeError:
        return UnsendableDocument(doc_id, f"{path}: its name is not valid UTF-8; rename it")
    if not doc_id.isprintable() or any(char in doc_id for char in _UNSENDABLE):
        return UnsendableDocument(
            doc_id, f"{path}: its name has quotes or control characters; rename it"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        return UnsendableDocument(doc_id, f"{path} cannot be read: {error.strerror}")
    media_type = MEDIA_TYPE_OF_SUFFIX.get(path.suffix.lower(), "text/plain")
    if file_kind(path.name, media_type, content) in UTF8_KINDS:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            return UnsendableDocument(
                doc_id,
                f"{path} is not valid UTF-8 (byte {error.start}): convert it, e.g. with iconv -f "
                f"latin1 -t utf-8 {path}",
            )
    return DocumentToSend(doc_id, media_type, content)


def _lines(
    source: SourceFile, metadata: dict[str, Any]
) -> Iterator[DocumentToSend | UnsendableDocument]:
    try:
        with source.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(f"{source.path}, line {number}", line, metadata)
    except OSError as error:
        yield UnsendableDocument(source.doc_id, f"{source.path} cannot be read: {error.strerror}")


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
            place, f"{place}: expected an object with doc_id and text ({error!r})"
        )
    return DocumentToSend(str(row["doc_id"]), ROW, content, str(row.get("collection", "")))
