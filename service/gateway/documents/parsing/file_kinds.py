"""Which files can be read: names and media types of every kind, and how a file's kind is found."""

from __future__ import annotations

from pathlib import PurePath

PDF_START = b"%PDF-"
_ZIP_START = b"PK\x03\x04"
_OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PICTURE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
_STARTS = {
    PDF_START: "pdf",
    _ZIP_START: "office",
    _OLE_START: "office",
    **dict.fromkeys(_PICTURE_STARTS, "image"),
}
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."
_OFFICE = "application/vnd.openxmlformats-officedocument."
# (kind, media type, suffixes). Office's formats and EPUB are one kind: the parser tells them apart.
_FORMATS = (
    ("text", "text/plain", (".txt", ".text")),
    ("md", "text/markdown", (".md", ".markdown")),
    ("rst", "text/x-rst", (".rst",)),
    ("adoc", "text/asciidoc", (".adoc", ".asciidoc")),
    ("html", "text/html", (".html", ".htm")),
    ("html", "application/xhtml+xml", (".xhtml",)),
    ("csv", "text/csv", (".csv",)),
    ("csv", "text/tab-separated-values", (".tsv", ".tab")),
    ("eml", "message/rfc822", (".eml",)),
    ("pdf", "application/pdf", (".pdf",)),
    ("office", _OFFICE + "wordprocessingml.document", (".docx",)),
    ("office", _OFFICE + "presentationml.presentation", (".pptx",)),
    ("office", _OFFICE + "spreadsheetml.sheet", (".xlsx",)),
    ("office", _OPEN_DOCUMENT + "text", (".odt",)),
    ("office", _OPEN_DOCUMENT + "spreadsheet", (".ods",)),
    ("office", _OPEN_DOCUMENT + "presentation", (".odp",)),
    ("office", "application/epub+zip", (".epub",)),
    ("image", "image/png", (".png",)),
    ("image", "image/jpeg", (".jpg", ".jpeg")),
    ("image", "image/tiff", (".tif", ".tiff")),
)
MEDIA_TYPE_OF_SUFFIX = {suffix: media for _, media, names in _FORMATS for suffix in names}
KIND_OF_SUFFIX = {suffix: kind for kind, _, names in _FORMATS for suffix in names}
# Plain text says nothing: clients send it for files of kinds that they do not know.
KIND_OF_MEDIA_TYPE = {media: kind for kind, media, _ in _FORMATS if kind != "text"}

# Pictures of a folder are mostly logos and drawings: they are read where they are named.
SUFFIXES_IN_FOLDERS = tuple(name for name, kind in KIND_OF_SUFFIX.items() if kind != "image")

# How files begin that are text, or look like it, and say nothing that anybody wants to find.
_NOT_READ = {
    rb"{\rtf": "it is RTF: save it as .docx",
    b"%!PS": "it is PostScript: make a PDF of it, e.g. with ps2pdf",
    b"GIF8": "it is a GIF: save it as PNG",
    b"\x1f\x8b": "it is compressed with gzip: unpack it",
    b"BZh": "it is compressed with bzip2: unpack it",
    b"\xfd7zXZ": "it is compressed with xz: unpack it",
    b"7z\xbc\xaf": "it is a 7-Zip archive: unpack it",
    b"\x7fELF": "it is a program",
}

BINARY_KINDS = ("pdf", "office", "image")  # mostly pictures and markup, so they may be larger


def kind_of_start(content: bytes | bytearray) -> str | None:
    """Return the kind that the first bytes of a file tell, whatever its name says."""
    return next((kind for start, kind in _STARTS.items() if content.startswith(start)), None)


def why_no_text(content: bytes) -> str | None:
    """Return why bytes that nobody gave another kind are no text, and what to do; else None."""
    return next((why for start, why in _NOT_READ.items() if content.startswith(start)), None)


def file_kind(name: str, media_type: str, content: bytes) -> str:
    """Return the kind of a file: by its first bytes, media type or name, else "text"."""
    return (
        kind_of_start(content)
        or KIND_OF_MEDIA_TYPE.get(media_type)
        or KIND_OF_SUFFIX.get(PurePath(name).suffix.lower(), "text")
    )
