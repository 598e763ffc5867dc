"""PDF: the text of its pages, what is filled into its forms, and the remarks of readers.

Running headers and footers are kept where they first stand. PDFium reads the characters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    meaningful_title,
    places_warning,
)
from kvstitch.service.gateway.documents.parsing.pdf.layout import Line, beside, lines_of
from kvstitch.service.gateway.documents.parsing.pdf.lines import (
    Vocabulary,
    paragraphs,
    without_running_lines,
)
from kvstitch.service.gateway.documents.parsing.pdf.page_tables import with_named_rows
from kvstitch.service.gateway.documents.parsing.pdf.visible import VisibleWords
from kvstitch.service.gateway.documents.parsing.pdf.words import LONG_SIDE, picture_words, read_page

if TYPE_CHECKING:
    import numpy as np

MAX_SCALE = 200 / 72  # pixels per point; finer ones cost time and give no more
FEW_CHARS = 100  # less than this on a page that a picture covers: a scan with a stamp on it
_USUAL = ".,;:-\u2013\u2014_=*()/%$\u20ac\u2022\x02"  # in tables, rules and leaders
COVERED = 0.5  # of the page


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", 0) == raw.FPDF_ERR_PASSWORD:
            raise InvalidRequest("it is encrypted: remove the password first") from error
        raise InvalidRequest(
            "it is damaged, or not readable pdf: open it and save it anew"
        ) from error
    bounds.check_pages(len(document), "pages")
    if document.get_formtype() != raw.FORMTYPE_NONE:
        document.init_forms()
    reading = _Reading(document, bounds)
    chars = 0
    for number in range(len(document)):
        chars += reading.page(number)
        bounds.check_chars(chars)
    if reading.all_blank:
        raise InvalidRequest("there is nothing on its pages")
    if not any(reading.pages) and not any(reading.remarks):
        raise InvalidRequest(f"it holds no text, only pictures: {reading.advice} first")
    if reading.all_unreadable:
        raise InvalidRequest(
            "its fonts do not say which characters they show, so its text cannot be read: "
            f"print it to a new PDF, or {reading.advice}"
        )
    return reading.finish(bounds)


class _Reading:
    def __init__(self, document: pdfium.PdfDocument, bounds: Bounds) -> None:
        self._document = document
        self._pictures = picture_words(bounds)
        advice = "run it through OCR"
        self.advice = advice if bounds.picture_reader else f"install kvstitch-ocr, or {advice}"
        self.pages: list[list[Line]] = []
        self.remarks: list[list[str]] = []
        self._empty: list[str] = []
        self._scans: list[str] = []
        self._unreadable: list[str] = []
        self._left_out: Counter[str] = Counter()
        self._addresses = Addresses()

    def page(self, index: int) -> int:
        """Read a page; returns how many characters it has."""
        label = str(index + 1)
        try:
            page = self._document[index]
        except pdfium.PdfiumError:  # a page of a damaged file
            self.pages.append([])
            self.remarks.append([])
            self._empty.append(label)
            return 0
        share, fonts_inside = _picture_share(page), _has_fonts_inside(page)
        visible = VisibleWords(page, below_picture=share > COVERED, fonts_inside=fonts_inside)
        found = read_page(self._document, page, self._addresses, visible)
        text = "".join(word.text for word in found.words)
        missing: list[str] | None = None
        if found.unmapped > 0.2 * len(text) or _is_rubbish(text):
            missing = self._unreadable
        elif not text and not found.entries:
            if next(page.get_objects(max_depth=1), None) is not None:  # it is not blank
                missing = self._empty
        elif len(text) < FEW_CHARS and share > COVERED:
            missing = self._scans
        words = found.words
        if missing is not None:
            # Letters of a font that is neither named by characters nor inside are drawn as others.
            shown = missing is not self._unreadable or fonts_inside
            if self._pictures is not None and shown:
                words = self._pictures.words(*_picture(page), label) or found.words
            if words is found.words:
                missing.append(label)
        lines, readings = lines_of(words, found.entries)
        if words is found.words:
            lines = [*beside(found.before, lines), *lines, *beside(found.behind, lines)]
        self.pages.append(lines)
        self.remarks.append(found.remarks)
        self._left_out += Counter(readings_left_out=readings, hidden_text=visible.hidden)
        page.close()
        return sum(len(word.text) for word in words) + sum(map(len, found.remarks))

    @property
    def all_unreadable(self) -> bool:
        """Whether no page with text can be read."""
        return len(self._unreadable) == sum(map(bool, self.pages)) > 0

    @property
    def all_blank(self) -> bool:
        """Whether there is nothing to see on any page."""
        return not (any(self.pages) or any(self.remarks) or self._empty)

    def finish(self, bounds: Bounds) -> ParsedFile:
        out = TextBuilder(bounds)
        vocabulary = Vocabulary(line.text for page in self.pages for line in page)
        pages = with_named_rows(without_running_lines(self.pages))
        texts = paragraphs(pages, vocabulary)
        for number, (text, remarks) in enumerate(zip(texts, self.remarks, strict=True), 1):
            out.mark("page", str(number))
            out.block(text)
            for remark in remarks:
                out.block(remark)
        title = str(self._document.get_metadata_dict(skip_empty=True).get("Title", ""))
        return out.finish(meaningful_title(title), self._warnings())

    def _warnings(self) -> list[ParseWarning]:
        attached = raw.FPDFDoc_GetAttachmentCount(self._document.raw)
        said = (
            ("pages_without_text", "without text, which may be scans: {places}; ", self._empty),
            ("pages_mostly_pictures", "that a picture covers, with hardly any text, which may be "
             "scans: {places}; ", self._scans),
            ("text_without_unicode", "with fonts that do not say which characters they show, whose "
             "text is wrong: {places}; print the file to a new PDF, or ", self._unreadable),
        )  # fmt: skip
        warnings = [places_warning(code, f"pages {message}{self.advice}", places)
                    for code, message, places in said if places]  # fmt: skip
        if attached > 0:
            message = f"{attached} files inside the PDF are not read: save and ingest them"
            warnings.append(ParseWarning("embedded_files", message, count=attached))
        if self._document.get_formtype() in (raw.FORMTYPE_XFA_FULL, raw.FORMTYPE_XFA_FOREGROUND):
            message = "a form of Adobe LiveCycle (XFA): what was filled in may be missing; "
            warnings.append(ParseWarning("xfa_form", f"{message}print the file to a new PDF"))
        warnings += left_out_warnings(self._left_out)
        return warnings + (self._pictures.warnings() if self._pictures else [])


def _picture(page: pdfium.PdfPage) -> tuple[np.ndarray, float]:
    """Draw a page without its form fields; returns the picture and the points of a pixel."""
    import numpy as np

    scale = min(LONG_SIDE / max(page.get_size()), MAX_SCALE)
    bitmap = page.render(scale=scale, may_draw_forms=False)
    pixels = bitmap.to_numpy()
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        pixels = np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, :3]), 1 / scale


def _has_fonts_inside(page: pdfium.PdfPage) -> bool:
    """Return whether the shapes of any letters of a page are in the file."""
    fonts = (text.get_font() for text in page.get_objects([raw.FPDF_PAGEOBJ_TEXT], max_depth=3))
    return any(raw.FPDFFont_GetIsEmbedded(font) == 1 for font in fonts)


def _is_rubbish(text: str) -> bool:
    """Return whether a text is mostly signs: codes of a font that does not say what they show."""
    signs = sum(not (char.isalnum() or char in _USUAL) for char in text)
    return len(text) >= 40 and signs > 0.4 * len(text)


def _picture_share(page: pdfium.PdfPage) -> float:
    """Return the share of a page that its largest picture covers."""
    width, height = page.get_size()
    largest = 0.0
    for picture in page.get_objects([raw.FPDF_PAGEOBJ_IMAGE], max_depth=3):
        left, bottom, right, top = picture.get_bounds()
        largest = max(largest, (right - left) * (top - bottom))
    return float(largest / max(width * height, 1.0))
