"""EPUB: the chapters of a book in reading order, each read as a page."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from dataclasses import replace
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.markup import html
from kvstitch.service.gateway.documents.parsing.office.formats import open_zip
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    LEFT_OUT,
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    places_warning,
)

_OPF = "{http://www.idpf.org/2007/opf}"
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_ENCRYPTION = "META-INF/encryption.xml"
_PICTURE = re.compile(rb"<(?:img|image)\b", re.I)
_PAGES = ("application/xhtml+xml", "text/html")


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse an EPUB: the chapters of a book in reading order, each read as HTML."""
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
        names = {name.lower(): name for name in archive.namelist()}
        warnings: dict[str, ParseWarning] = {}
        left_out: Counter[str] = Counter()
        missing: list[str] = []
        for name in chapters:
            if name in encrypted:
                raise InvalidRequest("it is encrypted: books with copy protection cannot be read")
            if (known := names.get(name.lower())) is None:
                missing.append(posixpath.basename(name))
                continue
            page = archive.read(known)
            left_out["pictures"] += len(_PICTURE.findall(page))
            parsed = html.parse(page, bounds)
            out.file(parsed)
            for warning in parsed.warnings:
                before = warnings.get(warning.code)
                count = warning.count + (0 if before is None else before.count)
                warnings[warning.code] = replace(warning, count=count)
                if warning.code in LEFT_OUT:
                    left_out[warning.code] += warning.count
    told = [*(w for code, w in warnings.items() if code not in LEFT_OUT)]
    if missing:
        message = "chapters that the book names and does not hold: {places}"
        told.append(places_warning("missing_chapters", message, missing))
    title = opf.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
    return out.finish(title, [*told, *left_out_warnings(left_out)])


def _chapters(opf: ElementTree.Element, folder: str) -> list[str]:
    """Return the names in the archive of the files in reading order."""
    hrefs = {
        item.get("id"): item.get("href", "")
        for item in opf.iter(f"{_OPF}item")
        if item.get("media-type") in _PAGES
    }
    references = sorted(opf.iter(f"{_OPF}itemref"), key=lambda ref: ref.get("linear") == "no")
    order = [ref.get("idref") for ref in references]
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
