"""PDF: the text of its pages. Runs in the parser process."""

from __future__ import annotations

from io import BytesIO

from pypdf import PdfReader

from service.errors import InvalidRequest
from service.gateway.corpus.parsing.parsed_file import ParsedFile


def parse(content: bytes, max_pages: int, max_chars: int) -> ParsedFile:
    """Parse a file.

    Raises:
        InvalidRequest: It exceeds a limit, is encrypted or holds no text.
        Exception: Whatever pypdf raises for a broken file.
    """
    reader = PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise InvalidRequest("it is encrypted: remove the password first")
    count = len(reader.pages)
    if count > max_pages:
        raise InvalidRequest(f"it has {count} pages, the limit is {max_pages}: split it")
    starts: list[int] = []
    parts: list[str] = []
    size = 0
    for page in reader.pages:
        starts.append(size)
        parts.append(_valid(page.extract_text()).strip() + "\n\n")
        size += len(parts[-1])
        if size > max_chars + 2 * count:
            raise InvalidRequest(f"its text has more than {max_chars} characters: split it")
    text = "".join(parts).rstrip()
    if not text:
        raise InvalidRequest("it holds no text, only pictures: run it through OCR first")
    title = (reader.metadata.title if reader.metadata else None) or ""
    return ParsedFile(text, _valid(str(title)).strip(), [min(start, len(text)) for start in starts])


def _valid(text: str) -> str:
    """Replace halves of surrogate pairs, which fonts can map glyphs to and which are not text."""
    return text.encode("utf-8", "replace").decode()
