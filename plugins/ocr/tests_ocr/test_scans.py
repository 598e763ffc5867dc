"""Scanned pages and pictures, drawn here, are read by OCR in the parser's process."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pypdfium2 as pdfium
import pytest
from PIL import Image, ImageDraw, ImageFont

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from kvstitch.service.gateway.documents.parsing.pdf import document
from kvstitch.service.plugins import PictureReader
from kvstitch_ocr import image_files, picture_reader
from kvstitch_ocr.reader import _legible
from tests.service.gateway.documents.pdfs import Drawn, draw_pdf, make_pdf

READER = cast(PictureReader, picture_reader())
FONT = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSerif.ttf")
ENGLISH = ["The heron waits at the weir in Lorvik.", "Serial number PPR-9087, 4.5 bar."]
GERMAN = ["Die Prüfung größerer Kessel kostet", "1.249,50 €, siehe § 12 Abs. 3."]
RUSSIAN = ["Цапля ждёт у плотины каждое утро.", "Давление не должно превышать нормы."]


def draw(lines: Sequence[str], *, angle: float = 0, noise: float = 0, at: int = 60) -> Image.Image:
    """A page of 800 x 280 pixels, turned by degrees, with grain of this deviation."""
    page = Image.new("L", (800, 280), "white")
    pen = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        pen.text((at, 40 + 50 * number), line, font=ImageFont.truetype(FONT, 26), fill=0)
    page = page.rotate(angle, fillcolor=255, expand=True)
    grain = np.random.default_rng(0).normal(0, noise, (page.height, page.width))
    return Image.fromarray(np.clip(np.asarray(page) + grain, 0, 255).astype(np.uint8))


def scans(pages: Sequence[Image.Image], *, before: bytes = b"") -> bytes:
    """A PDF of pictures, behind the pages of another."""
    out = io.BytesIO()
    pages[0].save(out, "PDF", save_all=True, append_images=pages[1:], resolution=150)
    if not before:
        return out.getvalue()
    whole = io.BytesIO()
    with pdfium.PdfDocument(before) as made, pdfium.PdfDocument(out.getvalue()) as pictures:
        made.import_pages(pictures)
        made.save(whole)
    return whole.getvalue()


def picture(page: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    page.save(out, kind, **options)
    return out.getvalue()


def read(kind: str, content: bytes, ocr_pages: int = 10) -> ParsedFile:
    parse = {"pdf": document.parse, "image": image_files.parse}[kind]
    return parse(content, Bounds(10, 10_000, ocr_pages, READER.reader))


def said(parsed: ParsedFile) -> dict[str, tuple[str, ...]]:
    return {warning.code: warning.places for warning in parsed.warnings}


async def test_scanned_pages_are_read_in_their_place() -> None:
    """In the parser's process, whose limits OCR would exceed if they were not raised for it."""
    before = make_pdf(["A page of text before the scans."])
    pages = [draw(GERMAN, angle=1, noise=15), draw(RUSSIAN), draw(ENGLISH)]
    limits = FileLimits(10, 10_000, cpu_s=20, memory_bytes=512 << 20, ocr_pages=2, pictures=READER)
    parsed = await parse_file("pdf", scans(pages, before=before), limits)
    assert parsed.text.split("\n") == ["A page of text before the scans.", "", *GERMAN]
    assert [mark[1:] for mark in parsed.marks] == [("page", str(n)) for n in range(1, 5)]
    # What it cannot read is no text, and what is too much for a file is named.
    assert said(parsed) == {
        "pages_without_text": ("3", "4"),
        "read_by_ocr": ("2",),
        "ocr_stopped": ("4",),
    }


def test_columns_are_read_one_after_the_other() -> None:
    left = ["The heron waits", "at the weir all", "morning for fish", "and for frogs."]
    right = ["Kettles of steel", "boil in a minute", "and hold water", "for six people."]
    page = draw(left)
    page.paste(draw(right, at=10).crop((0, 0, 350, 280)), (420, 0))
    parsed = read("pdf", scans([page]))
    # OCR leaves out a blank now and then; here the order counts.
    assert parsed.text.replace(" ", "") == "\n".join([*left, *right]).replace(" ", "")


def test_pictures_as_files() -> None:
    """One stands on its head, and one lies on its side."""
    parsed = read("image", picture(draw(ENGLISH, angle=180), "PNG"))
    assert parsed.text.split("\n") == ENGLISH
    pages = [draw(ENGLISH, angle=90), draw(GERMAN)]
    tiff = picture(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    parsed = read("image", tiff)
    assert parsed.text.split("\n") == [*ENGLISH, "", *GERMAN]
    assert [mark[1:] for mark in parsed.marks] == [("page", "1"), ("page", "2")]
    assert said(parsed) == {"read_by_ocr": ("1", "2")}


@pytest.mark.parametrize(
    ("kind", "content", "ocr_pages", "says"),
    [
        ("pdf", scans([draw(ENGLISH)]), 0, "only pictures"),
        ("pdf", scans([draw(RUSSIAN)]), 1, "only pictures"),
        ("image", picture(draw(ENGLISH), "JPEG"), 0, "kvstitch-ocr"),
        ("image", picture(draw([]), "PNG"), 1, "nothing"),
        ("image", picture(draw(ENGLISH), "PNG")[:2000], 1, "damaged"),
        ("image", picture(Image.new("1", (12_000, 9_000)), "PNG"), 1, "pixels"),
    ],
    ids=["off", "unknown script", "picture, off", "blank", "cut", "large"],
)
def test_what_is_not_read_is_refused(kind: str, content: bytes, ocr_pages: int, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(kind, content, ocr_pages)


def test_lines_of_unknown_scripts_are_known_by_their_blanks_and_zeros() -> None:
    assert _legible("Die Prüfung größerer Kessel", 0.99, 14)
    assert _legible("鍋爐每年檢查一次", 0.99, 8)
    assert not _legible("      4,5 .", 0.87, 24)
    assert not _legible(".0000 000 0000", 0.91, 12)
    assert not _legible("ress-. . s s5.", 0.58, 12)


def test_text_whose_letters_are_not_in_the_file_is_not_guessed_from_a_picture() -> None:
    """What is drawn for it are the letters of another font: OCR would read them well, and wrong."""
    page = [Drawn(60, 700 - 20 * n, "The warranty of a kettle ends in May.") for n in range(3)]
    with pytest.raises(InvalidRequest, match="which characters they show"):
        read("pdf", draw_pdf([page], unicode=False))
