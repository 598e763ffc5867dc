"""DOCX, PPTX, XLSX and EPUB: all are zip archives, and read as what they are, whatever the file's
name says."""

from __future__ import annotations

from importlib import import_module

from service.errors import InvalidRequest
from service.gateway.documents.parsing.formats.zip_file import check_no_entities, kind_of, open_zip
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file of any of these formats.

    Raises:
        InvalidRequest: It is none of them, is encrypted, or exceeds a limit.
        Exception: Whatever the format's library raises for a broken file.
    """
    with open_zip(content) as archive:
        kind = kind_of(archive)
        if kind is None:
            raise InvalidRequest("it is an archive, but no .docx, .pptx, .xlsx or .epub: unpack it")
        if kind != "epub":
            check_no_entities(archive)
    module = import_module(f"service.gateway.documents.parsing.formats.{kind}")
    parsed: ParsedFile = module.parse(content, bounds)
    return parsed
