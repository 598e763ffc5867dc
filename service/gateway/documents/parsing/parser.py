"""Turns an uploaded document of any kind into one that can be indexed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from retriever import Document, Mark
from service.errors import InvalidRequest
from service.gateway.documents.jobs.job_records import SpooledDocument
from service.gateway.documents.parsing import sandbox
from service.gateway.documents.parsing.parsed_file import AS_THEY_ARE, MAX_MARKS, ParsedFile
from service.gateway.documents.parsing.sandbox import GONE


class DocumentParser:
    """Parses documents by their kind, within limits."""

    def __init__(self, limits: sandbox.FileLimits) -> None:
        self._limits = limits

    async def document(self, item: SpooledDocument) -> Document:
        """The document with its text, and marks where pages and headings begin.

        Without a title it gets the one in the file, else the file's name.

        Raises:
            InvalidRequest: The file cannot be parsed; the message says why.
        """
        content = item.file if item.content is None else item.content
        assert item.kind is not None and item.meta is not None and content is not None
        title: str = item.meta["title"]
        metadata: dict[str, Any] = item.meta["metadata"]
        if item.kind == "text":
            return Document(item.doc_id, await _text(content), title, metadata)
        parsed = await sandbox.parse(item.kind, content, self._limits)
        if item.kind in AS_THEY_ARE:
            parsed = replace(parsed, text=await _text(content))
        if not parsed.text.strip():
            raise InvalidRequest("the file holds no text")
        name = PurePath(item.doc_id).stem
        title = title or parsed.title[:2048] or name
        return Document(item.doc_id, parsed.text, title, metadata, _marks(parsed))


async def _text(content: bytes | Path) -> str:
    """The text of content that is UTF-8."""
    if isinstance(content, Path):
        try:
            content = await asyncio.to_thread(content.read_bytes)
        except OSError as error:
            raise InvalidRequest(GONE.format(error.strerror)) from error
    return content.decode("utf-8-sig")


def _marks(parsed: ParsedFile) -> tuple[Mark, ...]:
    """The marks that say something: with a label, and with text behind them."""
    said = [Mark(*mark) for mark in parsed.marks if mark[2] and mark[0] < len(parsed.text)]
    return tuple(sorted(said, key=lambda mark: mark.start)[:MAX_MARKS])
