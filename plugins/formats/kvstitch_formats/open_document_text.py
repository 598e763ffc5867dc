"""The text of OpenDocument's paragraphs, what else these hold, and what their styles say."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from zipfile import ZipFile

from kvstitch.service.gateway.documents.parsing.formulas import formula
from kvstitch.service.gateway.documents.parsing.office.docx_styles import written_number
from kvstitch.service.gateway.documents.parsing.office.drawings import xml_of
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    lowered,
    raised,
    struck,
)

_KINDS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
Level = tuple[str, str, str, int, int]
"""(format, before, behind, how many levels are shown, first number) of a list's level."""


def name_of(element: Any) -> str:
    """Return an element's name without its namespace; "" of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def value(element: Any, name: str) -> str:
    """Return an attribute by its name without its namespace; "" if it is not given."""
    return next((v for k, v in element.attrib.items() if k.rpartition("}")[2] == name), "")


class Styles:
    """The styles of a document by name."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._hidden: dict[str, set[str]] = {"text": set(), "table": set(), "slide": set()}
        self.lists: dict[str, dict[int, Level]] = {}
        self.outline: dict[int, Level] = {}
        self.small: dict[str, str] = {}  # styles of raised ("super") and lowered ("sub") text
        self.struck: set[str] = set()
        for root in roots:
            for style in root.iter():
                name = name_of(style)
                if name == "style":
                    self._read(style)
                elif name in ("list-style", "outline-style"):
                    levels = dict(map(_level, style))
                    if name == "outline-style":
                        self.outline = levels
                    else:
                        self.lists[value(style, "name")] = levels

    def hides_text(self, name: str) -> bool:
        return name in self._hidden["text"]

    def hides_table(self, name: str) -> bool:
        return name in self._hidden["table"]

    def hides_slide(self, name: str) -> bool:
        return name in self._hidden["slide"]

    def _read(self, style: Any) -> None:
        name = value(style, "name")
        for properties in style:
            kind = name_of(properties)
            if kind == "text-properties" and value(properties, "display") == "none":
                self._hidden["text"].add(name)
            elif kind == "text-properties":
                place = value(properties, "text-position").partition(" ")[0]
                if place.startswith(("super", "sub")):
                    self.small[name] = place
                elif place.rstrip("%").lstrip("-").isdecimal() and place.strip("0%"):
                    self.small[name] = "sub" if place.startswith("-") else "super"
                if value(properties, "text-line-through-style") not in ("", "none"):
                    self.struck.add(name)
            elif kind == "table-properties" and value(properties, "display") == "false":
                self._hidden["table"].add(name)
            elif kind == "drawing-page-properties" and value(properties, "visibility") == "hidden":
                self._hidden["slide"].add(name)


def _level(element: Any) -> tuple[int, Level]:
    depth, shown, start = (
        int(found) if (found := value(element, name)).isdecimal() else 1
        for name in ("level", "display-levels", "start-value")
    )
    return depth - 1, (
        value(element, "num-format"), value(element, "num-prefix"), value(element, "num-suffix"),
        shown, start,
    )  # fmt: skip


class Numbers:
    """Counts headings and items of lists as office programs do."""

    def __init__(self, styles: Styles) -> None:
        self._styles = styles
        self._headings: dict[int, int] = {}
        self._lists: dict[str, dict[int, int]] = {}  # a list's style → depth → its last number

    def heading(self, element: Any, level: int) -> str:
        """Count a heading; returns its number as it is printed, "" if it has none."""
        if value(element, "is-list-header") == "true":
            return ""
        return _next(self._headings, self._styles.outline, level - 1, value(element, "start-value"))

    def begin(self, element: Any, depth: int, style: str) -> None:
        """Begin a list: its numbers begin anew unless it says that it goes on."""
        goes_on = value(element, "continue-numbering") == "true" or value(element, "continue-list")
        if not depth and not goes_on:
            self._lists[style] = {}

    def item(self, element: Any, depth: int, style: str) -> str:
        """Count an item; returns its number as it is printed, "" for a bullet."""
        counts = self._lists.setdefault(style, {})
        levels = self._styles.lists.get(style, {})
        return _next(counts, levels, depth, value(element, "start-value"))


def _next(counts: dict[int, int], levels: dict[int, Level], depth: int, start: str) -> str:
    found = levels.get(depth)
    if found is None:
        return ""
    for deeper in [d for d in counts if d > depth]:
        del counts[deeper]
    counts[depth] = int(start) if start.isdecimal() else counts.get(depth, found[4] - 1) + 1
    kind, before, behind, shown, _ = found
    if not kind:
        return ""
    parts = []
    for above in range(max(0, depth - shown + 1), depth + 1):
        own, _, _, _, first = levels.get(above, found)
        if own:
            parts.append(written_number(counts.setdefault(above, first), _KINDS.get(own, own)))
    return f"{before}{'.'.join(parts)}{behind}".strip()


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
        self._addresses = Addresses()

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
            start = len(out)
            walk(child)
            self._mark(child, out, start)

    def _mark(self, child: Any, out: list[str], start: int) -> None:
        """Write what the style or the link of a part says that was just written."""
        style, text = value(child, "style-name"), "".join(out[start:])
        if name_of(child) == "a":
            out.append(self._addresses.behind(text, value(child, "href")))
        elif style in self._styles.small:
            small = raised if self._styles.small[style].startswith("super") else lowered
            out[start:] = [small("".join(out[:start]), text)]
        elif style in self._styles.struck:
            out[start:] = [struck(text)]

    def _formula(self, frame: Any) -> str | None:
        """Return the text of a frame that holds a formula."""
        for child in frame:
            folder = posixpath.normpath(value(child, "href")) if name_of(child) == "object" else ""
            if folder and f"{folder}/content.xml" in self._archive.namelist():
                root = xml_of(self._archive.read(f"{folder}/content.xml"))
                return formula(root) if name_of(root) == "math" else None
        return None
