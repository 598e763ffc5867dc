"""What lies over the cells of a sheet, in parts of their own: comments, text boxes, charts."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zipfile import ZipFile

from lxml import etree
from openpyxl.packaging.relationship import get_dependents, get_rels_path

from kvstitch.service.gateway.documents.parsing.office import drawings
from kvstitch.service.gateway.documents.parsing.parsed_file import one_line

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_XDR = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"


@dataclass
class SheetParts:
    """What is on a sheet besides the values of its cells."""

    comments: list[tuple[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


# What Excel writes before a remark for its older versions.
_BOILERPLATE = re.compile(r"\[Threaded comment\].*?(?:Comm?ent\w*|Kommentar):\s*")


def parts_of(archive: ZipFile, sheet: str) -> SheetParts:
    found = SheetParts()
    notes: list[tuple[str, str]] = []
    for kind, name, root in _related(archive, sheet):
        if root is None:
            found.left_out["embedded_objects"] += kind in ("oleObject", "package")
        elif kind == "threadedComment":
            found.comments += _comments(root)
        elif kind == "comments":
            notes += _comments(root)
        elif kind == "drawing":
            found.left_out["pictures"] += sum(1 for _ in root.iter(f"{_XDR}pic"))
            found.texts += filter(None, map(_text, root.iter(f"{_XDR}txBody")))
            for of_drawing, _, part in _related(archive, name):
                if of_drawing == "chart" and part is not None:
                    found.texts += filter(None, [drawings.chart_title(part)])
                elif of_drawing == "diagramData" and part is not None:
                    found.texts += drawings.smartart_lines(part)
    # Newer comments are there once more as notes, for older programs.
    cells = {cell for cell, _ in found.comments}
    found.comments += [note for note in notes if note[0] not in cells]
    return found


def external_targets(archive: ZipFile, sheet: str) -> dict[str, str]:
    """Return the addresses that a sheet refers to, by the ids of its references."""
    return {r.Id: r.target for r in _relations(archive, sheet) if r.TargetMode == "External"}


def _relations(archive: ZipFile, name: str) -> list[Any]:
    try:
        return list(get_dependents(archive, get_rels_path(name)))
    except (KeyError, etree.XMLSyntaxError):
        return []


def _related(archive: ZipFile, name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the parts that a part refers to: the kind, the name, and the root of what is XML."""
    for relation in _relations(archive, name):
        kind = str(relation.Type).rpartition("/")[2]
        root = None
        try:
            if relation.TargetMode != "External" and relation.target.endswith(".xml"):
                root = drawings.xml_of(archive.read(relation.target))
        except (KeyError, etree.XMLSyntaxError):  # the sheet is read all the same
            pass
        yield kind, relation.target, root


def _comments(root: Any) -> Iterator[tuple[str, str]]:
    for element in root.iter():
        if isinstance(element.tag, str) and element.tag.endswith(("}comment", "}threadedComment")):
            texts = (e.text or "" for e in element.iter("{*}t", "{*}text"))
            if text := _BOILERPLATE.sub("", one_line("".join(texts))):
                yield element.get("ref", ""), text


def _text(body: Any) -> str:
    lines = ("".join(t.text or "" for t in p.iter(f"{_A}t")) for p in body.iter(f"{_A}p"))
    return "\n".join(line for line in map(one_line, lines) if line)
