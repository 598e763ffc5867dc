"""PPTX: text, tables and speaker's notes of every slide, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from pptx import Presentation
from pptx.shapes.group import GroupShape

from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder, one_line
from service.gateway.documents.parsing.tables import add_rows

DEFAULT_TITLE = "PowerPoint Presentation"  # what PowerPoint writes where nobody wrote one


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a PPTX: text, tables and speaker's notes of every slide.

    Not kept: hidden slides, charts, diagrams, pictures, comments, masters and layouts.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever python-pptx raises for a broken file.
    """
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
    stack = [iter(shapes)]
    while stack:
        shape = next(stack[-1], None)
        if shape is None:
            stack.pop()
        elif isinstance(shape, GroupShape):
            stack.append(iter(shape.shapes))
        else:
            yield shape
