"""Which words of a page a reader sees: those where something is drawn. Not: what has no size, is
off the page, without a colour or in that of its ground, or below something."""

import ctypes

import pypdfium2 as pdfium
import pypdfium2.raw as raw

SCALE = 1.5  # pixels of a point
LONG_SIDE = 2200  # pixels at most
MIN_POINTS = 1.0  # of a letter that can be read
MIN_CONTRAST = 8  # of 255 shades


class VisibleWords:
    """Tells of one page's words whether they are seen; counts those that are not.

    Of a scan (`below_picture`) OCR has written the words below the picture, not always in place.
    """

    def __init__(self, page: pdfium.PdfPage, *, below_picture: bool, fonts_inside: bool) -> None:
        self.hidden = 0
        self._page, self._scan, self._fonts_inside = page, below_picture, fonts_inside
        scale = min(SCALE, LONG_SIDE / max(page.get_size()))
        self._shades = page.render(scale=scale, grayscale=True, may_draw_forms=False).to_numpy()

    def shows(self, word: str, x0: float, y0: float, x1: float, y1: float, height: float) -> bool:
        """Return whether a word is seen whose letters are so high; all in points."""
        (left, top), (right, bottom) = self._pixel(x0, y1), self._pixel(x1, y0)
        columns, rows = sorted((left, right)), sorted((top, bottom))
        area = self._shades[max(0, rows[0]) : max(0, rows[1] + 1),
                            max(0, columns[0]) : max(0, columns[1] + 1)]  # fmt: skip
        seen = height >= MIN_POINTS and area.size > 0
        # Letters whose shapes are neither in the file nor in PDFium are drawn as nothing.
        if seen and not self._scan and (self._fonts_inside or word.isascii()):
            seen = int(area.max()) - int(area.min()) >= MIN_CONTRAST
        self.hidden += not seen
        return seen

    def _pixel(self, x: float, y: float) -> tuple[int, int]:
        column, row = ctypes.c_int(), ctypes.c_int()
        height, width = self._shades.shape[:2]
        raw.FPDF_PageToDevice(self._page.raw, 0, 0, width, height, 0, x, y, column, row)
        return column.value, row.value
