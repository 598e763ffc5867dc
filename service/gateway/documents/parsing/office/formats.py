"""DOCX, PPTX and XLSX: all are zip archives of XML, and read as what they are, whatever the file's
name says. Bombs are refused before they unpack.

The libraries get what Word and Excel open, too, but write only on request (Strict Open XML) or not
at all (names of parts in another case, with backslashes) as they know it.
"""

import posixpath
import re
from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from urllib.parse import unquote
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile

OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
MAX_ENTRIES = 20_000
MAX_UNPACKED_BYTES = 512 << 20  # of all entries: zipfile reads no more than an entry declares
MAX_XML_BYTES = 128 << 20  # of one entry that is XML: as a tree it takes several times as much
_ENCRYPTED_OFFICE = "EncryptedPackage".encode("utf-16-le")
_OUTLOOK = "__substg1.0_".encode("utf-16-le")
_DECLARATION_BYTES = 4096


def open_zip(content: bytes) -> ZipFile:
    if content.startswith(OLE_START):
        if _ENCRYPTED_OFFICE in content:
            raise InvalidRequest("it is encrypted: remove the password first")
        if _OUTLOOK in content:
            raise InvalidRequest("it is a mail of Outlook (.msg): save it as .eml")
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


_OF_APPLE = re.compile(r"(?:^|/)(?:Index\.zip|index\.(?:apxl|xml\.gz)|[^/]+\.iwa)$")
# A file that only such a format has.
_PARSERS = {
    "word/document.xml": "kvstitch.service.gateway.documents.parsing.office.docx:parse",
    "ppt/presentation.xml": "kvstitch.service.gateway.documents.parsing.office.pptx:parse",
    "xl/workbook.xml": "kvstitch.service.gateway.documents.parsing.office.xlsx:parse",
}


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file of any of these formats, or of those that plugins add."""
    with open_zip(content) as archive:
        if parser := _parser_of(archive, _PARSERS):
            check_no_entities(archive)
            content = usual_package(content, archive)
        elif not (parser := _parser_of(archive, bounds.archives)):
            if any(_OF_APPLE.search(name) for name in archive.namelist()):
                raise InvalidRequest(
                    "it is of Apple's Pages, Numbers or Keynote: export it as PDF, or for Office"
                )
            raise InvalidRequest(
                "it is an archive, but no .docx, .pptx or .xlsx (OpenDocument and EPUB are read by "
                "the plugin kvstitch-formats): unpack it"
            )
    # Each of these libraries takes a part of a second to load.
    module, _, function = parser.partition(":")
    parsed: ParsedFile = getattr(import_module(module), function)(content, bounds)
    return parsed


def _parser_of(archive: ZipFile, parsers: Mapping[str, str]) -> str | None:
    """Return the parser by what is in the archive, not by its name; None if it is unknown."""
    names = {name.replace("\\", "/").lower(): name for name in archive.namelist()}
    for part, parser in parsers.items():
        name, _, start = part.partition("=")
        if found := names.get(name.lower()):
            with archive.open(found) as file:
                if file.read(len(start)) == start.encode():
                    return parser
    return None


# Namespaces of ISO 29500 Strict and what they are called in the transitional form.
_STRICT = b"http://purl.oclc.org/ooxml/"
_USUAL = "http://schemas.openxmlformats.org/"
_TRANSITIONAL = {
    "officeDocument/": _USUAL + "officeDocument/2006/",
    "wordprocessingml/main": _USUAL + "wordprocessingml/2006/main",
    "spreadsheetml/main": _USUAL + "spreadsheetml/2006/main",
    "presentationml/main": _USUAL + "presentationml/2006/main",
    "drawingml/": _USUAL + "drawingml/2006/",
    "schemaLibrary/main": _USUAL + "schemaLibrary/2006/main",
}
_TARGET = re.compile(rb"""(\bTarget\s*=\s*)("[^"]*"|'[^']*')""")
_EXTERNAL = re.compile(rb"""TargetMode\s*=\s*["']External""")
_RELATIONSHIP = re.compile(rb"<(?:\w+:)?Relationship\b[^>]*>")


def usual_package(content: bytes, archive: ZipFile) -> bytes:
    """Return the archive, written anew if libraries would not read it as it is."""
    names = {name: posixpath.normpath(name.replace("\\", "/")) for name in archive.namelist()}
    known = {name.lower(): name for name in names.values()}
    names = {old: _beside_its_part(new, known) for old, new in names.items()}
    changed = any(old != new and not old.endswith("/") for old, new in names.items())
    parts: dict[str, bytes] = {}
    for old, new in names.items():
        if not new.lower().endswith((".xml", ".rels")):
            continue
        whole = part = archive.read(old)
        if _STRICT in part:
            for strict, usual in _TRANSITIONAL.items():
                part = part.replace(_STRICT + strict.encode(), usual.encode())
        if new.lower().endswith(".rels"):
            part = _with_known_targets(part, new, known)
        if part != whole:
            changed = True
            parts[old] = part
    if not changed:
        return content
    out = BytesIO()
    with ZipFile(out, "w", ZIP_STORED) as copy:
        for old, new in names.items():
            if not old.endswith("/"):
                copy.writestr(new, parts.get(old) or archive.read(old))
    return out.getvalue()


def _beside_its_part(name: str, known: dict[str, str]) -> str:
    """Return the name of a part; that of relationships is written as their part's is."""
    if not name.lower().endswith(".rels"):
        return name
    folder, base = posixpath.split(name)
    part = known.get(posixpath.join(posixpath.dirname(folder), base[:-5]).lower())
    return name if part is None else "{}/_rels/{}.rels".format(*posixpath.split(part)).lstrip("/")


def _with_known_targets(rels: bytes, name: str, known: dict[str, str]) -> bytes:
    """Return relationships whose targets are written as the names of the parts are."""
    folder = posixpath.dirname(posixpath.dirname(name))

    def target(match: re.Match[bytes]) -> bytes:
        quote = match[2][:1]
        said = match[2][1:-1].decode("utf-8", "replace").replace("\\", "/")
        path = posixpath.normpath(posixpath.join("/" + folder, unquote(said))).lstrip("/")
        found = known.get(path.lower())
        if found is None or (path == found and b"\\" not in match[2]):
            return match[0]
        return match[1] + quote + b"/" + found.encode() + quote

    def relationship(match: re.Match[bytes]) -> bytes:
        return match[0] if _EXTERNAL.search(match[0]) else _TARGET.sub(target, match[0])

    return _RELATIONSHIP.sub(relationship, rels)
