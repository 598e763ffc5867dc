"""Turns an uploaded document of any kind into one that can be indexed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from retriever import Document
from service.errors import InvalidRequest
from service.gateway.corpus.job_records import SpooledDocument
from service.gateway.corpus.parsing import sandbox
from service.gateway.corpus.parsing.parsed_file import ParsedFile

OUTLINE = "outline"


class DocumentParser:
    """Parses documents by their kind, within limits."""

    def __init__(self, limits: sandbox.FileLimits) -> None:
        self._limits = limits

    async def document(self, item: SpooledDocument) -> Document:
        """The document with its text.

        Without a title it gets the one in the file, else the file's name. The metadata says as
        `outline` where pages and headings begin.

        Raises:
            InvalidRequest: The file cannot be parsed; the message says why.
        """
        assert item.meta is not None and item.content is not None
        title: str = item.meta["title"]
        metadata: dict[str, Any] = item.meta["metadata"]
        if item.kind == "text":
            return Document(item.doc_id, item.content.decode(), title, metadata)
        parsed = await self._parse(item.kind or "", item.content)
        if not parsed.text.strip():
            raise InvalidRequest("the file holds no text")
        if parsed.outline:
            metadata = {OUTLINE: parsed.outline, **metadata}
        name = PurePath(item.doc_id).stem
        return Document(item.doc_id, parsed.text, title or parsed.title[:2048] or name, metadata)

    async def _parse(self, kind: str, content: bytes) -> ParsedFile:
        match kind:
            case "md":
                parsed = await sandbox.parse(kind, content, self._limits)
                return replace(parsed, text=content.decode())
            case "html" | "pdf":
                return await sandbox.parse(kind, content, self._limits)
        raise InvalidRequest(f"files of kind {kind!r} cannot be read")
