"""Formats that few people send: OpenDocument, EPUB, reStructuredText and AsciiDoc."""

from __future__ import annotations

from kvstitch.service.plugins import FileFormat, hookimpl

_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."


def _archive(media_type: str, suffix: str, parser: str, part: str) -> FileFormat:
    parser = f"kvstitch_formats.{parser}:parse"
    return FileFormat("office", media_type, (suffix,), parser, binary=True, part=part)


def _open_document(kind: str, suffix: str) -> FileFormat:
    part = f"mimetype={_OPEN_DOCUMENT}"
    return _archive(_OPEN_DOCUMENT + kind, suffix, "open_document", part)


@hookimpl
def file_formats() -> list[FileFormat]:
    rst, asciidoc = "kvstitch_formats.texts:parse_rst", "kvstitch_formats.texts:parse_asciidoc"
    return [
        FileFormat("rst", "text/x-rst", (".rst",), rst, text=True),
        FileFormat("adoc", "text/asciidoc", (".adoc", ".asciidoc"), asciidoc, text=True),
        _open_document("text", ".odt"),
        _open_document("spreadsheet", ".ods"),
        _open_document("presentation", ".odp"),
        _archive("application/epub+zip", ".epub", "epub", "META-INF/container.xml"),
    ]
