"""Files of every format, made by the libraries of others where there are any."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from io import BytesIO

import docx
import openpyxl
import pptx
from docx.oxml import OxmlElement
from pptx.util import Inches


def make_docx(text: str, title: str = "") -> bytes:
    """Two headings, two pages as Word would have laid them out, a list, and a table."""
    made = docx.Document()
    made.core_properties.title = title
    made.add_heading("Kettle", 1)
    made.add_paragraph(text)
    made.add_paragraph("boils", style="List Bullet")
    second = made.add_heading("Parts", 2)
    second.runs[0]._element.insert(0, OxmlElement("w:lastRenderedPageBreak"))
    table = made.add_table(3, 2)
    for row, cells in zip(
        table.rows, (("Part", "Price"), ("lid", "2"), ("handle", "3")), strict=True
    ):
        for cell, words in zip(row.cells, cells, strict=True):
            cell.text = words
    return saved(made)


def make_pptx(text: str) -> bytes:
    """A slide with text, a hidden one, one with a table, one with notes."""
    made = pptx.Presentation()
    for title, body in (("Kettle", text), ("Secret", "hidden"), ("Parts", "")):
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
    made.slides[1]._element.set("show", "0")
    table = made.slides[2].shapes.add_table(2, 2, *[Inches(1)] * 4).table
    for place, words in (((0, 0), "Part"), ((0, 1), "Price"), ((1, 0), "lid"), ((1, 1), "2")):
        table.cell(*place).text = words
    made.slides[2].notes_slide.notes_text_frame.text = "say it slowly"
    return saved(made)


def make_xlsx(sheets: dict[str, Iterable[Sequence[object]]], hidden: str = "") -> bytes:
    made = openpyxl.Workbook()
    made.remove(made.worksheets[0])
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
        if name == hidden:
            sheet.sheet_state = "hidden"
    return saved(made)


def make_eml(text: str, *, html: str = "") -> bytes:
    made = EmailMessage()
    made["From"], made["To"] = "Ada <ada@example.org>", "bob@example.org"
    made["Subject"], made["Date"] = "The kettle 🫖", datetime(2024, 5, 1, 12, 0)
    if text:
        made.set_content(text)
    if html:
        made.set_content(html, subtype="html", charset="iso-8859-1")
    made.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="bill.pdf")
    return made.as_bytes()


def make_zip(files: Mapping[str, str | bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def changed_zip(content: bytes, changes: Mapping[str, str | bytes]) -> bytes:
    """The archive with some files replaced or added."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        files: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    return make_zip({**files, **changes})


def saved(made: object) -> bytes:
    out = BytesIO()
    made.save(out)  # type: ignore[attr-defined]
    return out.getvalue()
