"""Makes Office's archives such as its libraries read them: what Word and Excel open, too, but write
only on request (Strict Open XML) or not at all (names of parts in another case, with backslashes).
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from io import BytesIO
from urllib.parse import unquote
from zipfile import ZipFile

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
    with ZipFile(out, "w", zipfile.ZIP_STORED) as copy:
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
