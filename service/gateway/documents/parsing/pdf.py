"""PDF: the text of its pages."""

from __future__ import annotations

from io import BytesIO

from pypdf import PdfReader

from service.errors import InvalidRequest
from service.gateway.documents.parsing.parsed_file import Bounds, Mark, ParsedFile


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file.

    Raises:
        InvalidRequest: It exceeds a limit, is encrypted or holds no text.
        Exception: Whatever pypdf raises for a broken file.
    """
    reader = PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise InvalidRequest("it is encrypted: remove the password first")
    count = len(reader.pages)
    bounds.check_pages(count, "pages")
    marks: list[Mark] = []
    parts: list[str] = []
    size = 0
    for number, page in enumerate(reader.pages, 1):
        marks.append((size, "page", str(number)))
        parts.append(_valid(page.extract_text()).strip() + "\n\n")
        size += len(parts[-1])
        bounds.check_chars(size - 2 * number)
    text = "".join(parts).rstrip()
    if not text:
        raise InvalidRequest("it holds no text, only pictures: run it through OCR first")
    title = (reader.metadata.title if reader.metadata else None) or ""
    return ParsedFile(text, _valid(str(title)).strip(), marks)


def _valid(text: str) -> str:
    """Replace halves of surrogate pairs, which fonts can map glyphs to and which are not text."""
    return text.encode("utf-8", "replace").decode()
