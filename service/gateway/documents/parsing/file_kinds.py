"""Which files can be read: names and media types of every kind, and how a file's kind is found."""

from __future__ import annotations

from functools import cache
from itertools import chain
from pathlib import PurePath

from kvstitch.service.plugins import FileFormat, hooks

PDF_START = b"%PDF-"
_ZIP_START = b"PK\x03\x04"
_OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OFFICE = "application/vnd.openxmlformats-officedocument."


def _text(kind: str, media_type: str, suffixes: tuple[str, ...], parser: str) -> FileFormat:
    return FileFormat(kind, media_type, suffixes, f"{_ROOM}.{parser}", text=True)


def _office(media_type: str, suffix: str) -> FileFormat:
    """Return one of the formats that the parser tells apart by what is in the archive."""
    starts, parser = (_ZIP_START, _OLE_START), f"{_ROOM}.office.formats:parse"
    return FileFormat("office", media_type, (suffix,), parser, starts, binary=True)


def _picture(media_type: str, suffixes: tuple[str, ...], *starts: bytes) -> FileFormat:
    """Return a format of pictures, which in folders are mostly logos and drawings: they are read
    where they are named."""
    parser = f"{_ROOM}.pdf.image_files:parse"
    return FileFormat("image", media_type, suffixes, parser, starts, binary=True, in_folders=False)


_ROOM = "kvstitch.service.gateway.documents.parsing"
_OWN = (
    _text("text", "text/plain", (".txt", ".text"), "markup.text_files:parse_text"),
    _text("md", "text/markdown", (".md", ".markdown"), "markup.text_files:parse_markdown"),
    _text("html", "text/html", (".html", ".htm"), "markup.html:parse"),
    _text("html", "application/xhtml+xml", (".xhtml",), "markup.html:parse"),
    _text("csv", "text/csv", (".csv",), "tables.csv_files:parse"),
    _text("csv", "text/tab-separated-values", (".tsv", ".tab"), "tables.csv_files:parse"),
    FileFormat("eml", "message/rfc822", (".eml",), f"{_ROOM}.mail:parse"),
    FileFormat("pdf", "application/pdf", (".pdf",), f"{_ROOM}.pdf.document:parse", (PDF_START,),
               binary=True),
    _office(_OFFICE + "wordprocessingml.document", ".docx"),
    _office(_OFFICE + "presentationml.presentation", ".pptx"),
    _office(_OFFICE + "spreadsheetml.sheet", ".xlsx"),
    _picture("image/png", (".png",), b"\x89PNG\r\n\x1a\n"),
    _picture("image/jpeg", (".jpg", ".jpeg"), b"\xff\xd8\xff"),
    _picture("image/tiff", (".tif", ".tiff"), b"II*\0", b"MM\0*"),
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


# How files begin that are text, or look like it, and say nothing that anybody wants to find.
NOT_READ = {
    rb"{\rtf": "it is RTF: save it as .docx",
    b"%!PS": "it is PostScript: make a PDF of it, e.g. with ps2pdf",
    b"GIF8": "it is a GIF: save it as PNG",
    b"\x1f\x8b": "it is compressed with gzip: unpack it",
    b"BZh": "it is compressed with bzip2: unpack it",
    b"\xfd7zXZ": "it is compressed with xz: unpack it",
    b"7z\xbc\xaf": "it is a 7-Zip archive: unpack it",
    b"\x7fELF": "it is a program",
}


def kind_of_start(content: bytes | bytearray) -> str | None:
    """Return the kind that the first bytes of a file tell, whatever its name says."""
    return next((made.kind for made in formats() if content.startswith(made.starts)), None)


def file_kind(name: str, media_type: str, content: bytes) -> str:
    """Return the kind of a file: by its first bytes, media type or name, else "text"."""
    if found := kind_of_start(content) or kind_of_media_type().get(media_type):
        return found
    suffix = PurePath(name).suffix.lower()
    return next((made.kind for made in formats() if suffix in made.suffixes), "text")
