"""The words of a PDF page and where they stand, what is filled in, and readers' remarks."""

from __future__ import annotations

import ctypes
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    Bounds,
    ParseWarning,
    lowered,
    raised,
)
from kvstitch.service.gateway.documents.parsing.pdf.visible import VisibleWords

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
    quarters: int = 0  # by which it is turned

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

    def warnings(self) -> list[ParseWarning]:
        """Return what was read, what hardly, and what not because it would have been too much."""


def picture_words(bounds: Bounds) -> PictureWords | None:
    """Return what reads the pictures of one file; None: nothing does."""
    if not bounds.picture_reader or not bounds.ocr_pages:
        return None
    module, _, name = bounds.picture_reader.partition(":")
    found: PictureWords = getattr(import_module(module), name)(bounds.ocr_pages)
    return found


@dataclass
class PageWords:
    """What stands on a page; words that are turned otherwise than most stand in runs beside these,
    before and behind them."""

    words: list[Word]
    before: list[list[Word]]
    behind: list[list[Word]]
    unmapped: int
    entries: list[Word]
    remarks: list[str]


def read_page(
    document: pdfium.PdfDocument, page: pdfium.PdfPage, addresses: Addresses, visible: VisibleWords
) -> PageWords:
    """Read a page's words, form fields and remarks, and where its links lead."""
    text = page.get_textpage()
    try:
        words, unmapped = _turned_words(text.raw, visible)
    finally:
        text.close()
    entries, remarks = _annotations(document, page)
    _write_addresses(document, page, words, addresses)
    turns = Counter(word.quarters for word in words)
    most = max(turns, key=lambda one: turns[one], default=0)
    for word in words:
        _turn(word, word.quarters)
    for entry in entries:
        _turn(entry, most)
    runs = [(q, list(run)) for q, run in groupby(words, key=lambda word: word.quarters)]
    first = next((n for n, (quarters, _) in enumerate(runs) if quarters == most), 0)
    return PageWords(
        [word for word in words if word.quarters == most],
        [run for _, run in runs[:first]],
        [run for quarters, run in runs[first:] if quarters != most],
        unmapped, entries, remarks,
    )  # fmt: skip


def _turn(word: Word, quarter: int) -> None:
    """Turn a word back that runs up the page (1) or down it (3)."""
    for _ in range(quarter):
        word.x0, word.x1, word.y0, word.y1 = word.y0, word.y1, -word.x1, -word.x0


def _turned_words(text: Any, visible: VisibleWords) -> tuple[list[Word], int]:
    """Return the words that are seen, and how many characters are unmapped."""
    unicode, box_of = raw.FPDFText_GetUnicode, raw.FPDFText_GetLooseCharBox
    box = raw.FS_RECTF()
    words: list[Word] = []
    chars: list[str] = []
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
            # PDFium counts angles clockwise. What stands on its head is read as it stands.
            quarters = -round(raw.FPDFText_GetCharAngle(text, first) / (math.pi / 2)) % 4
            turned = quarters if quarters in (1, 3) else 0
            height = x1 - x0 if turned else y1 - y0
            if not visible.shows("".join(chars), x0, y0, x1, y1, height):
                chars.clear()
                return
            word = Word("", x0, x1, y0, y1, breaks, apart, turned)
            before = words[-1] if words and not breaks else None
            small, joined = _with_small_digits(text, first, chars, turned, before)
            word.text, word.apart = _plain(small), apart and not joined
            words.append(word)
            # Of a word either all characters are known or none.
            if raw.FPDFText_HasUnicodeMapError(text, first) == 1:
                unmapped += len(chars)
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
    return words, unmapped


def _with_small_digits(
    text: Any, first: int, chars: list[str], turned: int, before: Word | None
) -> tuple[str, bool]:
    """Return a word with its small digits told apart from its number, and whether it is all small
    and belongs to the word before."""
    whole = "".join(chars)
    if not any(map(str.isdecimal, chars)) or (before is None and whole.isdecimal()):
        return whole, False
    boxes = []
    rect = raw.FS_RECTF()
    for index in range(first, first + len(chars)):
        raw.FPDFText_GetLooseCharBox(text, index, rect)
        boxes.append(Word("", rect.left, rect.right, rect.bottom, rect.top))
        _turn(boxes[-1], turned)
    out, base = "", boxes[0]
    if before is not None and boxes[0].height < 0.8 * before.height:
        near = Word("", before.x0, before.x1, before.y0, before.y1)
        _turn(near, turned)
        if abs(boxes[0].x0 - near.x1) < 0.15 * near.height and near.y0 < boxes[0].middle:
            out, base = before.text, near
    start = len(out)
    small = [box.height < 0.8 * base.height for box in boxes]
    high = [box.middle > base.middle for box in boxes]
    for (is_small, is_high), run in groupby(
        range(len(chars)), lambda n: (small[n], small[n] and high[n])
    ):
        part = "".join(chars[n] for n in run)
        behind = whole[len(out) - start + len(part) :]
        if is_small:
            part = raised(out, part, behind) if is_high else lowered(out, part)
        out += part
    return out[start:], start > 0 and out[start:] != whole


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


def _write_addresses(
    document: pdfium.PdfDocument, page: pdfium.PdfPage, words: list[Word], addresses: Addresses
) -> None:
    """Write where links lead behind the last of their words."""
    linked: dict[str, list[Word]] = {}
    for annotation in _each_annotation(page):
        link = raw.FPDFAnnot_GetLink(annotation)
        action = raw.FPDFLink_GetAction(link) if link else None
        size = raw.FPDFAction_GetURIPath(document.raw, action, None, 0) if action else 0
        if size > 1:
            buffer, box = ctypes.create_string_buffer(size), raw.FS_RECTF()
            raw.FPDFAction_GetURIPath(document.raw, action, buffer, size)
            raw.FPDFAnnot_GetRect(annotation, box)
            linked.setdefault(buffer.value.decode("utf-8", "replace"), []).extend(
                word for word in words
                if box.left <= (word.x0 + word.x1) / 2 <= box.right
                and box.bottom <= word.middle <= box.top
            )  # fmt: skip
    for address, on in linked.items():
        if on:
            on[-1].text += addresses.behind("".join(word.text for word in on), address)


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
