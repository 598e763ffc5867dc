"""Which files can be read: names and media types of every kind, and how a file's kind is found."""

import re
from functools import cache
from itertools import chain
from pathlib import PurePath

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.plugins import FileFormat, hooks

PDF_START = b"%PDF-"
_ZIP_START = b"PK\x03\x04"
_OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OFFICE = "application/vnd.openxmlformats-officedocument."


def _text(
    kind: str, media_type: str, suffixes: tuple[str, ...], parser: str, looks: bytes = b""
) -> FileFormat:
    return FileFormat(kind, media_type, suffixes, f"{_ROOM}.{parser}", text=True, looks=looks)


def _office(media_type: str, suffix: str) -> FileFormat:
    """Return one of the formats that the parser tells apart by what is in the archive."""
    starts, parser = (_ZIP_START, _OLE_START), f"{_ROOM}.office.formats:parse"
    return FileFormat("office", media_type, (suffix,), parser, starts, binary=True)


_ROOM = "kvstitch.service.gateway.documents.parsing"
_PAGE = rb"(?is)(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html[\s>])"
_OWN = (
    _text("text", "text/plain", (".txt", ".text"), "markup.text_files:parse_text"),
    _text("md", "text/markdown", (".md", ".markdown"), "markup.text_files:parse_markdown"),
    _text("html", "text/html", (".html", ".htm"), "markup.html:parse", _PAGE),
    _text("html", "application/xhtml+xml", (".xhtml",), "markup.html:parse"),
    _text("csv", "text/csv", (".csv",), "tables.csv_files:parse"),
    _text("csv", "text/tab-separated-values", (".tsv", ".tab"), "tables.csv_files:parse"),
    FileFormat("pdf", "application/pdf", (".pdf",), f"{_ROOM}.pdf.document:parse", (PDF_START,),
               binary=True),
    _office(_OFFICE + "wordprocessingml.document", ".docx"),
    _office(_OFFICE + "presentationml.presentation", ".pptx"),
    _office(_OFFICE + "spreadsheetml.sheet", ".xlsx"),
)  # fmt: skip


@cache
def formats() -> tuple[FileFormat, ...]:
    """Return all formats that can be read, the core's first."""
    return (*_OWN, *chain.from_iterable(hooks().file_formats()))


@cache
def media_type_of_suffix() -> dict[str, str]:
    return {suffix: made.media_type for made in formats() for suffix in made.suffixes}


@cache
def kind_of_media_type() -> dict[str, str]:
    """Return kinds by media types, but for plain text, which clients send for anything."""
    return {made.media_type: made.kind for made in formats() if made.kind != "text"}


@cache
def suffixes_in_folders() -> tuple[str, ...]:
    return tuple(suffix for made in formats() if made.in_folders for suffix in made.suffixes)


def format_of(kind: str) -> FileFormat | None:
    """Return a format of this kind, for what all of them have in common."""
    return next((made for made in formats() if made.kind == kind), None)


def parsers_by_part() -> dict[str, str]:
    """Return what parses the archives that plugins add, by what is in them."""
    return {made.part: made.parser for made in formats() if made.part}


def is_binary(kind: str) -> bool:
    """Return whether files are mostly pictures and markup, so that they may be larger."""
    return (found := format_of(kind)) is not None and found.binary


# How files begin that look like texts, or are sent as such, and say nothing that anybody wants to
# find.
_NOT_READ = {
    rb"\{\\rtf": "it is RTF: save it as .docx",
    rb"%!PS": "it is PostScript: make a PDF of it, e.g. with ps2pdf",
    rb"\x89PNG|\xff\xd8\xff|II\*\0|MM\0\*":
        "it is a picture: to read what is written in it, install kvstitch-ocr",
    rb"GIF8|RIFF....WEBP|BM....\0\0\0\0": "it is a GIF or other picture: save it as PNG",
    rb"RIFF....(?:WAVE|AVI )|ID3[\2-\4]\0|OggS\0|\0...ftyp|\x1aE\xdf\xa3":
        "it is sound or film: write down what is said",
    rb"\x1f\x8b|BZh\d|\xfd7zXZ|7z\xbc\xaf|Rar!\x1a|\x28\xb5\x2f\xfd": "it is compressed: unpack it",
    rb"\x7fELF|MZ[^\0]{0,6}\0": "it is a program",
    rb"SQLite format 3\0|PAR1\x15": "it is a database: export its tables as CSV",
    rb"\xe4R\\\x7b\x8c\xd8\xa7M": "it is a notebook of OneNote: export it as PDF or .docx",
}  # fmt: skip
UNREAD = "unread"  # the kind of a file that a plugin would read, were it there
_BY_PLUGIN = {
    rb"WEBVTT|\d+\r?\n\d\d:\d\d:\d\d,\d{3} -->": "subtitles",
    rb'\{\s*"(?:cells"\s*:\s*\[|nbformat)': "a notebook of Jupyter",
    rb"<\?xml": "XML",
    rb"(?i)From \S+ [^\n]*\d\d:\d\d|(?:[a-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*+)*?"
    rb"(?:mime-version|message-id|received):": "an e-mail",
}
_NO_TEXT = re.compile(rb"[\0-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_BLANKS = b"\xef\xbb\xbf \t\r\n"


def refuse_unread(content: bytes, kind: str) -> None:
    """Raise InvalidRequest for a file without a parser that is no plain text."""
    start = content[:4096].lstrip(_BLANKS)
    for pattern, why in _NOT_READ.items():
        if re.match(pattern, start, re.S):
            raise InvalidRequest(why)
    if kind == UNREAD:
        start = start.replace(b"\0", b"").lstrip(b"\xff\xfe")
        what = next(what for pattern, what in _BY_PLUGIN.items() if re.match(pattern, start))
        raise InvalidRequest(f"it is {what}: install kvstitch-formats, which reads it")


def kind_of_start(content: bytes | bytearray) -> str | None:
    """Return the kind that the first bytes of a file tell, whatever its name says."""
    return next((made.kind for made in formats() if content.startswith(made.starts)), None)


def _kind_of_look(start: bytes) -> str | None:
    return next((m.kind for m in formats() if m.looks and re.match(m.looks, start)), None)


def file_kind(name: str, media_type: str, content: bytes) -> str:
    """Return the kind of a file: by how it begins, by media type or name, else "text"."""
    start = content[:4096].replace(b"\0", b"").lstrip(_BLANKS + b"\xff\xfe")
    if found := kind_of_start(content) or _kind_of_look(start):
        return found
    if any(re.match(pattern, start) for pattern in _BY_PLUGIN):
        return UNREAD
    suffix = PurePath(name).suffix.lower()
    found = kind_of_media_type().get(media_type)
    found = found or next((made.kind for made in formats() if suffix in made.suffixes), "text")
    if (is_binary(found) or suffix == ".xls") and start and not _NO_TEXT.search(content[:4096]):
        # Programs write tables and letters as text, and call them as Office does.
        return "csv" if suffix.startswith(".xls") else "text"
    return found
