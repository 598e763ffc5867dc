"""The words of a PDF page and where they stand, what is filled in, and readers' remarks."""

from __future__ import annotations

import ctypes
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParseWarning

if TYPE_CHECKING:
    import numpy as np

LONG_SIDE = 2200  # pixels of a page that is a picture: a sheet of A4 at 190 dpi
HYPHEN = "\x02"  # PDFium's sign for a hyphen at the end of a line, which it joins with the next
_LINE_ENDS = (10, 13)
_SPACES = (9, 32, 0xA0, 0x3000)
_MARKUP = (
    raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_HIGHLIGHT, raw.FPDF_ANNOT_UNDERLINE,
    raw.FPDF_ANNOT_STRIKEOUT, raw.FPDF_ANNOT_SQUIGGLY, raw.FPDF_ANNOT_SQUARE,
    raw.FPDF_ANNOT_CIRCLE, raw.FPDF_ANNOT_LINE, raw.FPDF_ANNOT_INK, raw.FPDF_ANNOT_STAMP,
    raw.FPDF_ANNOT_CARET, raw.FPDF_ANNOT_POLYGON, raw.FPDF_ANNOT_POLYLINE,
)  # fmt: skip
_BOXES = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
_NOT_SHOWN = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW


@dataclass(slots=True)
class Word:
    """Characters without white space between them."""

    text: str
    x0: float
    x1: float
    y0: float
    y1: float
    breaks: bool = False
    apart: bool = True

    @property
    def height(self) -> float:
        return self.y1 - self.y0

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2


class PictureWords(Protocol):
    """Reads the words of a file's pictures, as a plugin does, and keeps account of them."""

    def words(self, picture: np.ndarray, points: float, place: str) -> list[Word]:
        """Return the words of a picture `[height, width, 3]` of page `place`, line by line."""
        ...

    def warnings(self) -> list[ParseWarning]:
        """Return what was read, what hardly, and what not because it would have been too much."""
        ...


def picture_words(bounds: Bounds) -> PictureWords | None:
    """Return what reads the pictures of one file; None: nothing does."""
    if not bounds.picture_reader or not bounds.ocr_pages:
        return None
    module, _, name = bounds.picture_reader.partition(":")
    found: PictureWords = getattr(import_module(module), name)(bounds.ocr_pages)
    return found


@dataclass
class PageWords:
    """What stands on a page."""

    words: list[Word]
    unmapped: int
    entries: list[Word]
    remarks: list[str]


def read_page(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> PageWords:
    """Read a page's words, form fields and remarks."""
    text = page.get_textpage()
    try:
        words, quarters, unmapped = _turned_words(text.raw)
    finally:
        text.close()
    entries, remarks = _annotations(document, page)
    quarter, count = max(quarters.items(), key=lambda one: one[1], default=(0, 0))
    if quarter in (1, 3) and 2 * count > len(words):
        for word in (*words, *entries):
            _turn(word, quarter)
    return PageWords(words, unmapped, entries, remarks)


def _turn(word: Word, quarter: int) -> None:
    """Turn a word back that runs up the page (1) or down it (3)."""
    for _ in range(quarter):
        word.x0, word.x1, word.y0, word.y1 = word.y0, word.y1, -word.x1, -word.x0


def _turned_words(text: Any) -> tuple[list[Word], Counter[int], int]:
    """Return words, how many are turned by so many quarters, and unmapped characters."""
    unicode, box_of = raw.FPDFText_GetUnicode, raw.FPDFText_GetLooseCharBox
    box = raw.FS_RECTF()
    words: list[Word] = []
    chars: list[str] = []
    quarters: Counter[int] = Counter()
    first = last = unmapped = 0
    breaks = apart = True

    def end() -> None:
        nonlocal breaks, apart, unmapped
        if chars:
            box_of(text, first, box)
            x0, x1, y0, y1 = box.left, box.right, box.bottom, box.top
            box_of(text, last, box)
            x0, x1 = min(x0, box.left), max(x1, box.right)
            y0, y1 = min(y0, box.bottom), max(y1, box.top)
            word = Word(_plain("".join(chars)), x0, x1, y0, y1, breaks, apart)
            words.append(word)
            # Of a word either all characters are known or none.
            if raw.FPDFText_HasUnicodeMapError(text, first) == 1:
                unmapped += len(chars)
            # PDFium counts angles clockwise.
            quarters[-round(raw.FPDFText_GetCharAngle(text, first) / (math.pi / 2)) % 4] += 1
            chars.clear()
            breaks = apart = False

    for index in range(raw.FPDFText_CountChars(text)):
        code = unicode(text, index)
        if code in _SPACES or code in _LINE_ENDS:
            end()
            apart = True
            breaks = breaks or code in _LINE_ENDS
        elif code == 2 and raw.FPDFText_IsHyphen(text, index) == 1:
            chars.append(HYPHEN)
            end()
            apart = breaks = True
        elif code:
            if not chars:
                first = index
            last = index
            chars.append(chr(code))
    end()
    return words, quarters, unmapped


def _plain(text: str) -> str:
    """Return ligatures and Arabic's positional forms as letters."""
    if text.isascii():
        return text
    if any("\ud800" <= char <= "\udfff" for char in text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(
        unicodedata.normalize("NFKC", char) if "\ufb00" <= char <= "\ufefc" else char
        for char in text
    )


def _annotations(
    document: pdfium.PdfDocument, page: pdfium.PdfPage
) -> tuple[list[Word], list[str]]:
    entries: list[Word] = []
    remarks: list[str] = []
    for annotation in _each_annotation(page):
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if raw.FPDFAnnot_GetFlags(annotation) & _NOT_SHOWN:
            continue
        if kind == raw.FPDF_ANNOT_WIDGET and document.formenv is not None:
            said = _field(document.formenv.raw, annotation)
        elif kind == raw.FPDF_ANNOT_FREETEXT:
            said = _string(annotation, b"Contents")
        elif kind in _MARKUP:
            if said := _string(annotation, b"Contents"):
                author = _string(annotation, b"T")
                remarks.append(f"Remark by {author}: {said}" if author else f"Remark: {said}")
            continue
        else:
            continue
        if said:
            box = raw.FS_RECTF()
            raw.FPDFAnnot_GetRect(annotation, box)
            entries.append(Word(said, box.left, box.right, box.bottom, box.top))
    return entries, remarks


def _each_annotation(page: pdfium.PdfPage) -> Iterator[Any]:
    for index in range(raw.FPDFPage_GetAnnotCount(page.raw)):
        if annotation := raw.FPDFPage_GetAnnot(page.raw, index):
            yield annotation
            raw.FPDFPage_CloseAnnot(annotation)


def _field(form: Any, annotation: Any) -> str:
    """Return what is filled in: a text, the chosen options, or a box with a cross or without."""
    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _BOXES:
        return "[x]" if raw.FPDFAnnot_IsChecked(form, annotation) == 1 else "[ ]"
    if kind == raw.FPDF_FORMFIELD_LISTBOX:
        chosen = [
            _utf16_text(raw.FPDFAnnot_GetOptionLabel, form, annotation, index)
            for index in range(max(0, raw.FPDFAnnot_GetOptionCount(form, annotation)))
            if raw.FPDFAnnot_IsOptionSelected(form, annotation, index) == 1
        ]
        if chosen:
            return ", ".join(chosen)
    if kind in (raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_UNKNOWN):
        return ""
    if raw.FPDFAnnot_GetFormFieldFlags(form, annotation) & 1 << 13:  # a password
        return ""
    return _utf16_text(raw.FPDFAnnot_GetFormFieldValue, form, annotation)


def _string(annotation: Any, key: bytes) -> str:
    return _utf16_text(raw.FPDFAnnot_GetStringValue, annotation, key)


def _utf16_text(function: Any, *arguments: Any) -> str:
    """Call a function of PDFium that writes UTF-16 into a buffer of ours."""
    size = function(*arguments, None, 0)  # in bytes, with the two of the end
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return " ".join(buffer.raw[: size - 2].decode("utf-16-le", "replace").split())
