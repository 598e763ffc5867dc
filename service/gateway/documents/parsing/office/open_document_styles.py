"""What OpenDocument's styles say: what is hidden, and how lists and headings are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.gateway.documents.parsing.office.docx_styles import written_number

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
