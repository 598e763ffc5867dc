"""A spooled document to one that can be indexed, whatever it was sent as. Knows no HTTP."""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from typing import Any

from retriever import Document
from service.errors import InvalidRequest
from service.gateway.corpus.job_records import SpooledDocument
from service.gateway.corpus.parsing import markdown, sandbox
from service.gateway.corpus.parsing.parsed_file import ParsedFile

OUTLINE = "outline"


class DocumentParser:
    """Turns content into text by its kind."""

    def __init__(self, limits: sandbox.FileLimits) -> None:
        self._limits = limits

    async def document(self, item: SpooledDocument) -> Document:
        """Raises InvalidRequest that says what is wrong with the file.

        Without a title the document gets the one the file names, else the file's own name; where
        pages and headings begin is in the metadata as `outline`.
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
                return await asyncio.to_thread(markdown.parse, content.decode())
            case "html" | "pdf":
                return await sandbox.parse(kind, content, self._limits)
        raise InvalidRequest(f"files of kind {kind!r} cannot be read")
