"""Office's archives as other programs write them, and what PowerPoint keeps apart."""

from __future__ import annotations

import zipfile
from io import BytesIO

import pytest
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from kvstitch.service.gateway.documents.parsing.office import formats, pptx
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from tests.service.gateway.documents.office_files import (
    changed_zip,
    make_docx,
    make_pptx,
    make_xlsx,
    make_zip,
)

BOUNDS = Bounds(50, 100_000)
SHEET = make_xlsx({"S": [["Bird", "Place", "Number"], ["Heron", "weir", 3]]})
WHOLE = {"docx": make_docx("The heron."), "pptx": make_pptx("The heron."), "xlsx": SHEET}
STRICT = (
    ("http://schemas.openxmlformats.org/officeDocument/2006/", "officeDocument/"),
    ("http://schemas.openxmlformats.org/wordprocessingml/2006/", "wordprocessingml/"),
    ("http://schemas.openxmlformats.org/spreadsheetml/2006/", "spreadsheetml/"),
    ("http://schemas.openxmlformats.org/presentationml/2006/", "presentationml/"),
    ("http://schemas.openxmlformats.org/drawingml/2006/", "drawingml/"),
)


def parts_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def strict(name: str, part: bytes) -> tuple[str, bytes]:
    for usual, other in STRICT:
        part = part.replace(usual.encode(), b"http://purl.oclc.org/ooxml/" + other.encode())
    return name, part


def with_backslashes(name: str, part: bytes) -> tuple[str, bytes]:
    return name.replace("/", "\\"), part


def in_capitals(name: str, part: bytes) -> tuple[str, bytes]:
    """Folders and files that only relationships name."""
    for lower in ("worksheets/sheet1", "slides/slide", "document.xml", "styles.xml"):
        name = name.replace(lower, lower.title())
    return name, part


@pytest.mark.parametrize("kind", sorted(WHOLE))
@pytest.mark.parametrize("change", [strict, with_backslashes, in_capitals])
def test_archives_as_other_programs_write_them(kind: str, change: object) -> None:
    changed = dict(change(name, part) for name, part in parts_of(WHOLE[kind]).items())  # type: ignore[operator]
    content = make_zip(changed)
    assert content != WHOLE[kind]
    found, usual = formats.parse(content, BOUNDS), formats.parse(WHOLE[kind], BOUNDS)
    assert found.text == usual.text and "eron" in found.text.lower()


MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
SHAPE = (
    '<p:sp><p:nvSpPr><p:cNvPr id="{n}" name="x"/><p:cNvSpPr/><p:nvPr/></p:nvSpPr><p:spPr/>'
    "<p:txBody><a:bodyPr/><a:p>{inside}</a:p></p:txBody></p:sp>"
)
MATH = (
    '<a14:m xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:oMath><m:f><m:num>'
    "<m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f></m:oMath></a14:m>"
)


def test_shapes_in_two_versions_and_formulas() -> None:
    whole = make_pptx("Text.")
    slide = parts_of(whole)["ppt/slides/slide1.xml"].decode()
    run = "<a:r><a:t>{}</a:t></a:r>"
    newer = SHAPE.format(n=90, inside=run.format("Ratio: ") + MATH)
    older = SHAPE.format(n=91, inside=run.format("a picture of it"))
    both = (
        f'<mc:AlternateContent {MC}><mc:Choice Requires="a14">{newer}</mc:Choice>'
        f"<mc:Fallback>{older}</mc:Fallback></mc:AlternateContent>"
    )
    slide = slide.replace("</p:spTree>", both + "</p:spTree>")
    found = pptx.parse(changed_zip(whole, {"ppt/slides/slide1.xml": slide}), BOUNDS)
    assert "Ratio: a/b" in found.text and "a picture" not in found.text
    assert {w.code: w.places for w in found.warnings} == {"hidden_slides": ("2",)}


def test_charts_pictures_and_merged_cells_of_slides() -> None:
    made = Presentation()
    slide = made.slides.add_slide(made.slide_layouts[6])
    data = CategoryChartData()
    data.categories = ["May", "June"]
    data.add_series("Lorvik", (2.5, 3))
    box = [Inches(1)] * 4
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *box, data)
    table = slide.shapes.add_table(3, 3, *box).table
    for row, cells in enumerate((("Town", "Ship", "Tons"), ("Lorvik", "Heron", "7"),
                                 ("", "Tern", "9"))):  # fmt: skip
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    picture = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8"
        b"\xff\xff?\0\5\xfe\2\xfe\xdc\xccY\xe7\0\0\0\0IEND\xaeB`\x82"
    )
    slide.shapes.add_picture(BytesIO(picture), Inches(1), Inches(1))
    out = BytesIO()
    made.save(out)
    found = pptx.parse(out.getvalue(), BOUNDS)
    assert found.text.split("\n") == [
        "Category: May | Lorvik: 2.5", "Category: June | Lorvik: 3", "",
        "Town: Lorvik | Ship: Heron | Tons: 7", "Town: Lorvik | Ship: Tern | Tons: 9",
    ]  # fmt: skip
    assert found.title == "" and [(w.code, w.count) for w in found.warnings] == [("pictures", 1)]
