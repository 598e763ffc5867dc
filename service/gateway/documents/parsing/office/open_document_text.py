"""The text of OpenDocument's paragraphs, and what else these hold."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from typing import Any
from zipfile import ZipFile

from service.gateway.documents.parsing.formulas import formula
from service.gateway.documents.parsing.office.drawings import xml_of
from service.gateway.documents.parsing.office.open_document_styles import Styles, name_of, value

_SPACE = re.compile(r"[ \t\r\n]+")
# Not part of the text: deleted words, templates of fields, what a shape is called.
SKIPPED = frozenset(
    ["tracked-changes", "forms", "sequence-decls", "variable-decls", "user-field-decls", "title",
     "desc", "shapes", "alphabetical-index-source", "bibliography-source",
     "table-of-content-source", "glue-point", "event-listeners", "notes-configuration"]
)  # fmt: skip
_CHARACTERS = {"tab": "\t", "line-break": "\n"}


class Paragraphs:
    """Reads paragraphs."""

    def __init__(self, archive: ZipFile, styles: Styles) -> None:
        self.left_out: Counter[str] = Counter()
        self.behind: list[Any] = []
        self._archive, self._styles = archive, styles

    def text(self, paragraph: Any) -> str:
        """Return a paragraph's text; `behind` gets what else it holds."""
        if self._styles.hides_text(value(paragraph, "style-name")):
            self.left_out["hidden_text"] += bool("".join(paragraph.itertext()).strip())
            return ""
        out: list[str] = []

        def add(text: str | None) -> None:
            text = _SPACE.sub(" ", text or "")
            out.append(text.lstrip(" ") if not out or out[-1].endswith((" ", "\n")) else text)

        def walk(element: Any) -> None:
            add(element.text)
            for child in element:
                self._inline(child, out, walk)
                add(child.tail)

        walk(paragraph)
        return "".join(out)

    def _inline(self, child: Any, out: list[str], walk: Any) -> None:
        name = name_of(child)
        if name == "s":
            out.append(" " * min(int(value(child, "c") or 1), 100))
        elif name in _CHARACTERS:
            out.append(_CHARACTERS[name])
        elif name in ("note", "annotation", "custom-shape", "text-box"):
            self.behind.append(child)
        elif name == "frame":
            if (text := self._formula(child)) is not None:
                out.append(text)
            else:
                self.behind.append(child)
        elif name in ("ruby-text", "number"):
            self.left_out["readings_left_out"] += name == "ruby-text"
        elif name in ("span", "p", "h") and self._styles.hides_text(value(child, "style-name")):
            self.left_out["hidden_text"] += bool("".join(child.itertext()).strip())
        elif name in ("hidden-text", "hidden-paragraph"):
            self.left_out["hidden_text"] += 1
        elif name not in SKIPPED and name:
            walk(child)

    def _formula(self, frame: Any) -> str | None:
        """Return the text of a frame that holds a formula."""
        for child in frame:
            folder = posixpath.normpath(value(child, "href")) if name_of(child) == "object" else ""
            if folder and f"{folder}/content.xml" in self._archive.namelist():
                root = xml_of(self._archive.read(f"{folder}/content.xml"))
                return formula(root) if name_of(root) == "math" else None
        return None
