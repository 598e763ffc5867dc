"""PPTX: text, tables, charts, SmartArt, notes and comments of every slide, in their order."""

from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import groupby
from typing import Any

from lxml import etree
from pptx import Presentation
from pptx.shapes.group import GroupShape

from kvstitch.service.gateway.documents.parsing.formulas import formula
from kvstitch.service.gateway.documents.parsing.office import drawings
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    Bounds,
    ParsedFile,
    TextBuilder,
    left_out_warnings,
    lowered,
    meaningful_title,
    one_line,
    places_warning,
    raised,
    struck,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_A14 = "{http://schemas.microsoft.com/office/drawing/2010/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_OLE = "{http://schemas.openxmlformats.org/presentationml/2006/main}oleObj"


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    presentation = Presentation(BytesIO(content))
    bounds.check_pages(len(presentation.slides), "slides")
    slides = _Slides(bounds)
    hidden: list[str] = []
    for number, slide in enumerate(presentation.slides, 1):
        if slide._element.get("show") == "0":
            hidden.append(str(number))
        else:
            slides.add(number, slide)
    warnings = left_out_warnings(slides.left_out)
    if hidden:
        message = "hidden slides are left out: {places}; show them and ingest the file again"
        warnings.append(places_warning("hidden_slides", message, hidden))
    title = meaningful_title(presentation.core_properties.title or "")
    return slides.out.finish(title or slides.title, warnings)


class _Slides:
    def __init__(self, bounds: Bounds) -> None:
        self.out = TextBuilder(bounds)
        self.title = ""  # of the first slide that has one
        self.left_out: Counter[str] = Counter()
        self._addresses = Addresses()

    def add(self, number: int, slide: Any) -> None:
        _choose_versions(slide._element)
        _write_formulas(slide._element)
        self.out.gap()
        self.out.mark("slide", str(number))
        title = slide.shapes.title
        if title is not None and title.has_text_frame:
            self.title = self.title or one_line(title.text_frame.text)
            self.out.heading(2, title.text_frame.text)
        shapes = [s for s in slide.shapes if title is None or s.shape_id != title.shape_id]
        for shape in _flat(_in_reading_order(shapes)):
            self._shape(slide.part, shape)
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            self.out.block(f"Notes: {notes.text}" if notes.text.strip() else "")
        for text in _comments(slide.part):
            self.out.block(f"Comment: {text}")

    def _shape(self, part: Any, shape: Any) -> None:
        if getattr(shape, "has_table", False):
            self.out.gap()
            add_rows(self.out, map(_cells, shape.table.rows))
        elif getattr(shape, "has_chart", False):
            chart = shape.chart._chartSpace
            self.out.block(drawings.chart_title(chart))
            add_rows(self.out, drawings.chart_rows(chart))
        elif shape.has_text_frame:
            self.out.block("\n".join(map(self._paragraph, shape.text_frame.paragraphs)))
        elif (diagram := next(shape._element.iter(_DIAGRAM), None)) is not None:
            root = _related(part, diagram.get(_RELATION + "dm", ""))
            if root is None:
                self.left_out["embedded_objects"] += 1
            else:
                self.out.block("\n".join(drawings.smartart_lines(root)))
        elif next(shape._element.iter(_OLE), None) is not None:
            self.left_out["embedded_objects"] += 1
        elif shape._element.tag.endswith("}pic"):
            self.left_out["pictures"] += 1

    def _paragraph(self, paragraph: Any) -> str:
        """Return a paragraph with signs for what is struck through, raised or lowered, and with
        addresses behind links."""
        out = ""
        for element in paragraph._p:
            text = "".join(t.text or "" for t in element.iter(_A + "t"))
            properties = element.find(_A + "rPr")
            if element.tag == _A + "br":
                text = "\n"
            elif properties is not None:
                height = properties.get("baseline", "0").removesuffix("%")
                if height.lstrip("-") not in ("", "0"):
                    text = (lowered if height[0] == "-" else raised)(out, text)
                if properties.get("strike", "noStrike") != "noStrike":
                    text = struck(text)
            out += text
            link = None if properties is None else properties.find(_A + "hlinkClick")
            key = "" if link is None else link.get(_RELATION + "id", "")
            if key and (relation := paragraph.part.rels.get(key)) and relation.is_external:
                out += self._addresses.behind(text, relation.target_ref)
        return out.replace("~~~~", "").replace("\v", "\n")


def _cells(row: Any) -> list[Cell | str]:
    """Return the cells that begin in a row, with how many rows and columns they cover."""
    return [
        Cell(cell.text, cell.span_height, cell.span_width) if cell.is_merge_origin else cell.text
        for cell in row.cells
        if not cell.is_spanned
    ]


def _related(part: Any, key: str) -> Any:
    try:
        return drawings.xml_of(part.related_part(key).blob)
    except (KeyError, etree.XMLSyntaxError):
        return None


def _comments(part: Any) -> Iterator[str]:
    for relation in part.rels.values():
        if relation.reltype.endswith("/comments") and not relation.is_external:
            root = drawings.xml_of(relation.target_part.blob)
            for comment in root:
                texts = (
                    e.text or "" for e in comment.iter() if str(e.tag).endswith(("}text", "}t"))
                )
                if text := one_line(" ".join(texts)):
                    yield text


def _choose_versions(slide: Any) -> None:
    """Of what is there in two versions keep the newer, which the library does not look for."""
    for versions in list(slide.iter(_MC + "AlternateContent")):
        chosen = versions.find(_MC + "Choice")
        chosen = versions.find(_MC + "Fallback") if chosen is None else chosen
        parent = versions.getparent()
        place = parent.index(versions)
        for child in reversed(() if chosen is None else list(chosen)):
            parent.insert(place, child)
        parent.remove(versions)


def _write_formulas(slide: Any) -> None:
    """Write formulas as text, each as a run in its paragraph."""
    for element in list(slide.iter(_A14 + "m")):
        parent = element.getparent()
        run = parent.makeelement(_A + "r")
        text = etree.SubElement(run, _A + "t")
        text.text = " ".join(map(formula, element))
        parent.replace(element, run)


def _in_reading_order(shapes: list[Any]) -> list[Any]:
    """Return shapes as they are read: bands from above; where these make columns of several boxes,
    column by column. Those without a place come last, as they were made."""
    placed = [s for s in shapes if None not in (s.left, s.top, s.width, s.height)]
    out: list[Any] = []
    for several, run in groupby(_apart(placed, "top", "height"), key=lambda band: len(band) > 1):
        bands = list(run)
        columns = _apart([shape for band in bands for shape in band], "left", "width")
        if several and len(columns) > 1 and min(map(len, columns)) > 1:
            out += (s for column in columns for s in sorted(column, key=lambda one: one.top))
        else:
            out += (s for band in bands for s in sorted(band, key=lambda one: one.left))
    return out + [s for s in shapes if s not in placed]


def _apart(shapes: list[Any], start: str, size: str) -> list[list[Any]]:
    """Return groups of shapes between which nothing lies in one direction."""
    groups: list[list[Any]] = []
    end = 0
    for shape in sorted(shapes, key=lambda one: getattr(one, start)):
        first, length = getattr(shape, start), getattr(shape, size)
        if groups and first + length // 10 < end:  # frames of boxes may touch
            groups[-1].append(shape)
        else:
            groups.append([shape])
        end = max(end, first + length)
    return groups


def _flat(shapes: Iterable[Any]) -> Iterator[Any]:
    """Yield all shapes; those of a group stand where it does."""
    stack = [iter(shapes)]
    while stack:
        shape = next(stack[-1], None)
        if shape is None:
            stack.pop()
        elif isinstance(shape, GroupShape):
            stack.append(iter(_in_reading_order(list(shape.shapes))))
        else:
            yield shape
