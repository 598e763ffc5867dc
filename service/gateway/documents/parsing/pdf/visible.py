"""Which texts of a page a reader sees. Not: what has no size, is drawn off the page, without a
colour or in that of what is below it, or has something drawn over it."""

from __future__ import annotations

import ctypes
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

MIN_POINTS = 1.0  # of a letter that can be read
MIN_CONTRAST = 12  # of 255, in one of red, green and blue
MAX_AREAS = 500  # on a page that are looked at; a drawing has more, and no text is hidden by it
_GRAPHICS = (raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_IMAGE, raw.FPDF_PAGEOBJ_SHADING)
_WHITE = (255, 255, 255, 255)
Box = tuple[float, float, float, float]
Color = tuple[int, ...] | None  # red, green, blue, alpha; None: it cannot be told


class VisibleTexts:
    """Tells for the characters of one page whether they are seen; counts texts that are not."""

    def __init__(self, page: pdfium.PdfPage) -> None:
        self._page = page
        box = raw.FS_RECTF()
        raw.FPDF_GetPageBoundingBox(page.raw, box)
        self._sheet = (box.left, box.bottom, box.right, box.top)
        self._known: dict[int, bool] = {}
        self._hidden: set[int] = set()
        self._areas: list[tuple[int, Box, Color]] | None = None
        self._order: dict[int, int] = {}

    @property
    def hidden(self) -> int:
        """How many texts were not seen."""
        return len(self._hidden)

    def shows(self, text: Any, index: int, box: Box, height: float) -> bool:
        """Return whether the word is seen that begins with this character of a page's text."""
        made = raw.FPDFText_GetTextObject(text, index)
        key = ctypes.cast(made, ctypes.c_void_p).value or 0
        left, bottom, right, top = self._sheet
        on_it = box[0] < right and left < box[2] and box[1] < top and bottom < box[3]
        seen = on_it and height >= MIN_POINTS
        if seen and key:
            if key not in self._known:
                self._known[key] = self._is_seen(made, key, box)
            seen = self._known[key]
        if not seen:
            self._hidden.add(key)
        return seen

    def _is_seen(self, made: Any, key: int, box: Box) -> bool:
        if self._areas is None:
            self._areas = self._find_areas()
        if len(self._areas) > MAX_AREAS:
            return True
        mode = raw.FPDFTextObj_GetTextRenderMode(made)
        if mode == raw.FPDF_TEXTRENDERMODE_INVISIBLE:  # what OCR has written below a picture
            return any(color is None for _, _, color in self._areas)
        order = self._order.get(key)
        around = [(n, color) for n, area, color in self._areas if _holds(area, box)]
        if order is not None and any(n > order and color is not None for n, color in around):
            return False
        if mode != raw.FPDF_TEXTRENDERMODE_FILL or (color := _fill_of(made)) is None:
            return True
        below = [under for n, under in around if order is None or n < order]
        ground = below[-1] if below else _WHITE
        if ground is None:
            return True
        pairs = zip(color[:3], ground[:3], strict=True)
        return color[3] > 0 and max(abs(a - b) for a, b in pairs) >= MIN_CONTRAST

    def _find_areas(self) -> list[tuple[int, Box, Color]]:
        """Return what may lie below or above texts, in the order in which it is drawn."""
        areas: list[tuple[int, Box, Color]] = []
        for order, made in enumerate(self._page.get_objects(max_depth=1)):
            self._order[ctypes.cast(made.raw, ctypes.c_void_p).value or 0] = order
            color: Color = None
            if made.type == raw.FPDF_PAGEOBJ_FORM:
                count = raw.FPDFFormObj_CountObjects(made.raw)
                inside = (raw.FPDFFormObj_GetObject(made.raw, n) for n in range(min(count, 999)))
                kinds = (*_GRAPHICS, raw.FPDF_PAGEOBJ_FORM)
                if not any(raw.FPDFPageObj_GetType(each) in kinds for each in inside):
                    continue
            elif made.type == raw.FPDF_PAGEOBJ_PATH:
                fill, stroke = ctypes.c_int(), raw.FPDF_BOOL()
                raw.FPDFPath_GetDrawMode(made.raw, fill, stroke)
                if not fill.value:
                    continue
                flat = raw.FPDFPath_CountSegments(made.raw) <= 6
                if flat and not raw.FPDFPageObj_HasTransparency(made.raw):
                    color = _fill_of(made.raw)
            elif made.type not in _GRAPHICS:
                continue
            left, bottom, right, top = made.get_bounds()
            if right - left > 3 and top - bottom > 3:  # no line
                areas.append((order, (left, bottom, right, top), color))
        return areas


def _holds(area: Box, box: Box) -> bool:
    """Return whether most of a word is in an area."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return area[0] <= x <= area[2] and area[1] <= y <= area[3]


def _fill_of(made: Any) -> Color:
    parts = [ctypes.c_uint() for _ in range(4)]
    if not raw.FPDFPageObj_GetFillColor(made, *parts):
        return None
    return tuple(part.value for part in parts)
