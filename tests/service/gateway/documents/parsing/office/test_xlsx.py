"""Spreadsheets: merged and hidden cells, formulas without values, numbers as people see them."""

from __future__ import annotations

from io import BytesIO
from zipfile import ZipFile

import pytest
from openpyxl import Workbook
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment

from kvstitch.service.gateway.documents.parsing.office.xlsx import formatted, parse
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from tests.service.gateway.documents.office_files import changed_zip


def saved(book: Workbook) -> ParsedFile:
    out = BytesIO()
    book.save(out)
    return parse(out.getvalue(), Bounds(10, 100_000))


def sheet(*rows: list[object]) -> Workbook:
    book = Workbook()
    assert book.active is not None
    for row in rows:
        book.active.append(row)
    return book


def lines(found: ParsedFile) -> list[str]:
    return [line for line in found.text.splitlines() if line and not line.startswith("## ")]


def test_titles_groups_and_merged_cells() -> None:
    book = sheet(
        ["Ferries of Vik"],
        [],
        ["Route", "Summer", None, "Winter", None],
        [None, "Trips", "Price", "Trips", "Price"],
        ["North", 12, 3.5, 4, 5],
        [None, 9, 2.5, "none", None],
        ["South", 1, 2, 3, 4],
    )
    for area in ("A1:E1", "A3:A4", "B3:C3", "D3:E3", "A5:A6", "D6:E6"):
        book.active.merge_cells(area)
    assert lines(saved(book)) == [
        "Ferries of Vik",
        "Route: North | Summer Trips: 12 | Summer Price: 3.5 | Winter Trips: 4 | Winter Price: 5",
        "Route: North | Summer Trips: 9 | Summer Price: 2.5 | Winter Trips, Winter Price: none",
        "Route: South | Summer Trips: 1 | Summer Price: 2 | Winter Trips: 3 | Winter Price: 4",
    ]


def test_comments_stand_behind_the_rows_unless_their_cell_is_hidden() -> None:
    book = sheet(["Valve", "Bar", "Owner"], ["V-7", 16, "Quastel"], ["V-8", 25, "Ostrander"])
    assert book.active is not None
    for cell, text in {
        "B2": "Measured cold.\nAsk Quastel.",
        "C2": "on leave",
        "B3": "gone",
    }.items():
        book.active[cell].comment = Comment(text, "Ada")
    book.active.column_dimensions["C"].hidden = True
    book.active.row_dimensions[3].hidden = True
    found = saved(book)
    assert lines(found) == ["Valve: V-7 | Bar: 16", "Comment on B2: Measured cold. Ask Quastel."]
    assert [warning.code for warning in found.warnings] == ["hidden_cells"]


DRAWING = """<xdr:wsDr xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing"
 xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><xdr:twoCellAnchor><xdr:sp>
 <xdr:txBody><a:p><a:r><a:t>Prices hold </a:t></a:r><a:r><a:t>until May.</a:t></a:r></a:p>
 <a:p><a:r><a:t>Then ask.</a:t></a:r></a:p></xdr:txBody></xdr:sp></xdr:twoCellAnchor>
 <xdr:oneCellAnchor><xdr:pic/></xdr:oneCellAnchor></xdr:wsDr>"""
THREAD = """<ThreadedComments
 xmlns="http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments">
 <threadedComment ref="A2"><text>Is this the old valve?</text></threadedComment>
 <threadedComment ref="A2"><text>No, the new one.</text></threadedComment></ThreadedComments>"""
THREAD_TYPE = "http://schemas.microsoft.com/office/2017/10/relationships/threadedComment"


def test_text_boxes_titles_of_charts_and_threads_of_comments() -> None:
    """Excel writes a thread once more as a note, which says that the program is too old."""
    book = sheet(["Valve", "Bar"], ["V-7", 16])
    chart = BarChart()
    chart.title = "Pressure by valve"
    chart.add_data(Reference(book.active, 2, 1, 2, 2), titles_from_data=True)
    assert book.active is not None
    book.active.add_chart(chart, "D1")
    book.active["A2"].comment = Comment("[Threaded comment] Your version of Excel …", "tc")
    out = BytesIO()
    book.save(out)
    relations = "xl/worksheets/_rels/sheet1.xml.rels"
    with ZipFile(out) as archive:
        rels = archive.read(relations).decode()
    more = f'<Relationship Id="t" Type="{THREAD_TYPE}" Target="/xl/threadedComments/t.xml"/>'
    content = changed_zip(
        out.getvalue(),
        {
            "xl/drawings/drawing1.xml": DRAWING,
            "xl/threadedComments/t.xml": THREAD,
            relations: rels.replace("</Relationships>", f"{more}</Relationships>"),
        },
    )
    found = parse(content, Bounds(10, 100_000))
    assert lines(found) == [
        "Valve: V-7 | Bar: 16",
        "Prices hold until May.",
        "Then ask.",
        "Pressure by valve",
        "Comment on A2: Is this the old valve?",
        "Comment on A2: No, the new one.",
    ]
    assert [(warning.code, warning.count) for warning in found.warnings] == [("pictures", 1)]


def test_hidden_rows_columns_and_sheets_are_left_out_and_said() -> None:
    book = sheet(
        ["Name", "Pay", "Town"],
        ["Quastel", 70_100, "Vik"],
        ["gone", 1, "Sund"],
        ["Ostrander", 2, "Nes"],
    )
    assert book.active is not None
    book.active.column_dimensions["B"].hidden = True
    book.active.row_dimensions[3].hidden = True
    book.create_sheet("Old").sheet_state = "hidden"
    found = saved(book)
    assert lines(found) == ["Name: Quastel | Town: Vik", "Name: Ostrander | Town: Nes"]
    said = {warning.code: warning for warning in found.warnings}
    assert said["hidden_sheets"].places == ("Old",)
    assert "1 columns and 1 rows" in said["hidden_cells"].message


def test_formulas_without_values_are_written_and_said() -> None:
    found = saved(
        sheet(["Part", "Net", "Gross"], ["lid", 2, "=B2*1.2"], ["Sum", "=SUM(B2:B2)", "=B3*1.2"])
    )
    assert lines(found) == [
        "Part: lid | Net: 2 | Gross: =B2*1.2", "Part: Sum | Net: =SUM(B2:B2) | Gross: =B3*1.2",
    ]  # fmt: skip
    (warning,) = found.warnings
    assert (warning.code, warning.places) == ("formulas_without_values", ("Sheet",))


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (0.175, "0.00%", "17.5%"), (0.07, "0%", "7%"), (-0.5, "0%", "-50%"),
        (872, "00000", "00872"), (4109.5, "00000", "4109.5"), (7, "0", "7"),
        (12.5, '#,##0.00 "kg"', "12.5 kg"), (12.5, "[$€-407] #,##0.00", "€ 12.5"),
        (-3, '"$"#,##0;[Red]-"$"#,##0', "$-3"), (1234.5, "#,##0.00", "1234.5"),
        (1.5, "0.00E+00", "1.5"), (123456789, "000-00-0000", "123456789"), (0.5, "# ?/?", "0.5"),
        (3, "General", "3"), (1 / 3, "General", "0.333333333333333"), (5, "@", "5"),
    ],
)  # fmt: skip
def test_numbers_are_as_people_see_them(value: float, code: str, text: str) -> None:
    assert formatted(value, code) == text
