"""DOCX, PPTX, XLSX, OpenDocument and EPUB: all are zip archives of XML, and read as what they are,
whatever the file's name says.
"""

from __future__ import annotations

from importlib import import_module
from zipfile import ZipFile

from service.errors import InvalidRequest
from service.gateway.documents.parsing.office.archives import check_no_entities, open_zip
from service.gateway.documents.parsing.office.package import usual_package
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile

# A file that only such a format has.
_KINDS = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
}

_OPEN_DOCUMENT = b"application/vnd.oasis.opendocument."


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file of any of these formats."""
    with open_zip(content) as archive:
        kind = kind_of(archive)
        if kind is None:
            raise InvalidRequest(
                "it is an archive, but no .docx, .pptx, .xlsx, .odt, .ods, .odp or .epub: unpack it"
            )
        if kind not in ("epub", "open_document"):
            check_no_entities(archive)
            content = usual_package(content, archive)
    # Each of these libraries takes a part of a second to load.
    module = import_module(f"service.gateway.documents.parsing.office.{kind}")
    parsed: ParsedFile = module.parse(content, bounds)
    return parsed


def kind_of(archive: ZipFile) -> str | None:
    """Return the format by what is in the archive, not by its name; None if it is unknown."""
    names = {name.replace("\\", "/").lower() for name in archive.namelist()}
    if "mimetype" in names and archive.open("mimetype").read(64).startswith(_OPEN_DOCUMENT):
        return "open_document"
    return next((kind for name, kind in _KINDS.items() if name.lower() in names), None)
