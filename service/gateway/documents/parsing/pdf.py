"""PDF: the text of its pages."""

from __future__ import annotations

from io import BytesIO

from pypdf import PdfReader

from service.errors import InvalidRequest
from service.gateway.documents.parsing.parsed_file import Bounds, Mark, ParsedFile, places_warning

PAGES_WITHOUT_TEXT = (
    "pages_without_text",
    "pages without text, which may be scans: {places}; run the file through OCR",
)


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse the text of a PDF's pages.

    Raises:
        InvalidRequest: It exceeds a limit, is encrypted or holds no text.
        Exception: Whatever pypdf raises for a broken file.
    """
    reader = PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise InvalidRequest("it is encrypted: remove the password first")
    bounds.check_pages(len(reader.pages), "pages")
    marks: list[Mark] = []
    empty: list[str] = []
    text = ""
    for number, page in enumerate(reader.pages, 1):
        marks.append((len(text), "page", str(number)))
        if not (found := _valid(page.extract_text()).strip()):
            empty.append(str(number))
        text += found + "\n\n"
        bounds.check_chars(len(text) - 2 * number)
    if not (text := text.rstrip()):
        raise InvalidRequest("it holds no text, only pictures: run it through OCR first")
    title = (reader.metadata.title if reader.metadata else None) or ""
    warnings = (places_warning(*PAGES_WITHOUT_TEXT, empty),) if empty else ()
    return ParsedFile(text, _valid(str(title)).strip(), marks, warnings)


def _valid(text: str) -> str:
    """Replace halves of surrogate pairs, which fonts can map glyphs to and which are not text."""
    return text.encode("utf-8", "replace").decode()
