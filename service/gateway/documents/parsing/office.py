"""DOCX, PPTX, XLSX and EPUB: all are zip archives of XML, and read as what they are, whatever the
file's name says. Bombs are refused before anything is unpacked.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from io import BytesIO
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import BadZipFile, ZipFile

from service.errors import InvalidRequest
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder, one_line
from service.gateway.documents.parsing.tables import add_rows

DEFAULT_TITLE = "PowerPoint Presentation"  # what PowerPoint writes where nobody wrote one
MAX_ROWS = 1_048_576  # Excel's own limit; a file may name rows far beyond it
OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
MAX_ENTRIES = 20_000
MAX_UNPACKED_BYTES = 512 << 20  # of all entries: zipfile reads no more than an entry declares
MAX_XML_BYTES = 128 << 20  # of one entry that is XML: as a tree it takes several times as much
_ENCRYPTED_OFFICE = "EncryptedPackage".encode("utf-16-le")
_DECLARATION_BYTES = 4096
# A file that only such a format has.
_KINDS = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
}


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
    if kind == "pptx":
        return _parse_pptx(content, bounds)
    if kind == "xlsx":
        return _parse_xlsx(content, bounds)
    if kind == "epub":
        return _parse_epub(content, bounds)
    from service.gateway.documents.parsing import docx

    return docx.parse(content, bounds)


def open_zip(content: bytes) -> ZipFile:
    """Open an archive.

    Raises:
        InvalidRequest: It is none, is encrypted, or unpacks to too much.
    """
    if content.startswith(OLE_START):
        if _ENCRYPTED_OFFICE in content:
            raise InvalidRequest("it is encrypted: remove the password first")
        raise InvalidRequest("it is a file of an old Office: save it as .docx, .pptx or .xlsx")
    try:
        archive = ZipFile(BytesIO(content))
        entries = archive.infolist()
    except (BadZipFile, ValueError, NotImplementedError) as error:
        raise InvalidRequest(f"it is damaged, or no such file at all ({error})") from error
    if any(entry.flag_bits & 1 for entry in entries):
        raise InvalidRequest("it is encrypted: remove the password first")
    xml = [entry for entry in entries if entry.filename.endswith((".xml", ".rels", ".opf"))]
    if (
        len(entries) > MAX_ENTRIES
        or sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES
        or any(entry.file_size > MAX_XML_BYTES for entry in xml)
    ):
        raise InvalidRequest(
            f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB, or to XML of more than "
            f"{MAX_XML_BYTES >> 20} MiB: split it"
        )
    return archive


def check_no_entities(archive: ZipFile) -> None:
    """Raise InvalidRequest if XML declares entities, which Office's formats forbid."""
    for entry in archive.infolist():
        if entry.filename.endswith((".xml", ".rels")):
            with archive.open(entry) as file:
                # Without NULs UTF-16 reads like ASCII.
                start = file.read(_DECLARATION_BYTES).replace(b"\0", b"")
            if b"<!DOCTYPE" in start or b"<!ENTITY" in start:
                raise InvalidRequest(f"{entry.filename} declares entities: save it anew")


def kind_of(archive: ZipFile) -> str | None:
    """Return the format by what is in the archive, not by its name; None if it is unknown."""
    names = set(archive.namelist())
    return next((kind for name, kind in _KINDS.items() if name in names), None)


def _parse_pptx(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a PPTX: text, tables and speaker's notes of every slide.

    Not kept: hidden slides, charts, diagrams, pictures, comments, masters and layouts.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever python-pptx raises for a broken file.
    """
    from pptx import Presentation  # each of these libraries takes a part of a second to load

    presentation = Presentation(BytesIO(content))
    bounds.check_pages(len(presentation.slides), "slides")
    out = TextBuilder(bounds)
    first = ""
    for number, slide in enumerate(presentation.slides, 1):
        if slide._element.get("show") == "0":
            continue
        out.gap()
        out.mark("slide", str(number))
        title = slide.shapes.title
        if title is not None and title.has_text_frame:
            first = first or one_line(title.text_frame.text)
            out.heading(2, title.text_frame.text)
        for shape in _flat(slide.shapes):
            if title is None or shape.shape_id != title.shape_id:
                _add_shape(out, shape)
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            out.block(f"Notes: {notes.text}" if notes.text.strip() else "")
    written = one_line(presentation.core_properties.title or "")
    return out.finish(first if written in ("", DEFAULT_TITLE) else written)


def _add_shape(out: TextBuilder, shape: Any) -> None:
    if getattr(shape, "has_table", False):
        out.gap()
        add_rows(out, ([cell.text for cell in row.cells] for row in shape.table.rows))
    elif shape.has_text_frame:
        # A vertical tab is a line break within a paragraph.
        out.block(shape.text_frame.text.replace("\v", "\n"))


def _flat(shapes: Iterable[Any]) -> Iterator[Any]:
    """Yield all shapes; those of a group stand where it does."""
    from pptx.shapes.group import GroupShape

    stack = [iter(shapes)]
    while stack:
        shape = next(stack[-1], None)
        if shape is None:
            stack.pop()
        elif isinstance(shape, GroupShape):
            stack.append(iter(shape.shapes))
        else:
            yield shape


def _parse_xlsx(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse an XLSX: every visible sheet as a table whose rows name their columns.

    Kept: the values that were saved, also those of formulas. Not kept: hidden sheets, charts,
    comments, formats of numbers.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever openpyxl raises for a broken file.
    """
    from openpyxl import load_workbook
    from openpyxl.worksheet._read_only import ReadOnlyWorksheet

    book = load_workbook(BytesIO(content), read_only=True, data_only=True, keep_links=False)
    bounds.check_pages(len(book.sheetnames), "sheets")
    out = TextBuilder(bounds)
    for sheet in book.worksheets:
        if sheet.sheet_state == "visible" and isinstance(sheet, ReadOnlyWorksheet):
            out.gap()
            out.mark("sheet", sheet.title)
            out.block(f"## {sheet.title}")
            if not add_rows(out, _rows(sheet)):
                out.block("(no rows)")
    return out.finish(book.properties.title or "")


def _rows(sheet: Any) -> Iterator[list[str]]:
    sheet.reset_dimensions()  # what the file says may be wrong, or billions of empty cells
    for row in sheet.iter_rows(max_row=MAX_ROWS, values_only=True):
        yield [_cell(value) for value in row]


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return f"{value:.15g}"
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(" ", "seconds")
        case date() | time():
            return value.isoformat()
    return str(value)


_OPF = "{http://www.idpf.org/2007/opf}"
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html")


def _parse_epub(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse an EPUB: the chapters of a book in reading order, each read as HTML.

    Not kept: pictures, notes that are files outside the reading order, and the table of contents.

    Raises:
        InvalidRequest: It exceeds a limit, is encrypted, or has no chapters.
        Exception: Whatever zipfile or the XML parser raises for a broken file.
    """
    from service.gateway.documents.parsing import html

    with open_zip(content) as archive:
        root = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        rootfile = root.find(f".//{_CONTAINER}rootfile")
        if rootfile is None:
            raise InvalidRequest("it names no package: save it anew")
        package = rootfile.get("full-path", "")
        opf = ElementTree.fromstring(archive.read(package))
        chapters = _chapters(opf, posixpath.dirname(package))
        bounds.check_pages(len(chapters), "chapters")
        out = TextBuilder(bounds)
        encrypted = _encrypted(archive)
        for name in chapters:
            if name in encrypted:
                raise InvalidRequest("it is encrypted: books with copy protection cannot be read")
            out.file(html.parse(archive.read(name), bounds))
    title = opf.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
    return out.finish(title)


def _chapters(opf: ElementTree.Element, folder: str) -> list[str]:
    """Return the names in the archive of the files in reading order.

    Raises:
        InvalidRequest: There are none.
    """
    hrefs = {
        item.get("id"): item.get("href", "")
        for item in opf.iter(f"{_OPF}item")
        if item.get("media-type") in _PAGES
    }
    order = [ref.get("idref") for ref in opf.iter(f"{_OPF}itemref") if ref.get("linear") != "no"]
    found = [
        posixpath.normpath(posixpath.join(folder, unquote(hrefs[name].partition("#")[0])))
        for name in order
        if name in hrefs
    ]
    if not found:
        raise InvalidRequest("it has no chapters: save it anew")
    return found


def _encrypted(archive: ZipFile) -> set[str]:
    """Return the names of encrypted files; fonts often are, which does not matter."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    root = ElementTree.fromstring(archive.read(_ENCRYPTION))
    references = root.iter("{http://www.w3.org/2001/04/xmlenc#}CipherReference")
    return {unquote(reference.get("URI", "")) for reference in references}
