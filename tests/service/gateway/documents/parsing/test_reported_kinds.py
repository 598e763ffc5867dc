"""Kinds of faults that people report of programs that read documents, where they may occur.

Every row is an input of its own, what must be in its text, and what must not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.oxml.ns import qn
from openpyxl.comments import Comment
from openpyxl.styles import Font
from pptx.util import Inches

from kvstitch.service.gateway.documents.parsing.markup import html, text_files
from kvstitch.service.gateway.documents.parsing.office import docx as docx_files
from kvstitch.service.gateway.documents.parsing.office import pptx as pptx_files
from kvstitch.service.gateway.documents.parsing.office import xlsx as xlsx_files
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch.service.gateway.documents.parsing.pdf import document as pdf
from kvstitch.service.gateway.documents.parsing.tables import csv_files
from tests.service.gateway.documents.office_files import saved
from tests.service.gateway.documents.pdfs import Drawn, draw_pdf, make_pdf

BOUNDS = Bounds(50, 100_000)


def page(body: str) -> ParsedFile:
    return html.parse(f"<html><body>{body}</body></html>".encode(), BOUNDS)


def typed(*runs: tuple[str, str]) -> ParsedFile:
    """A paragraph of Word with runs of (text, what is set of it)."""
    made = docx.Document()
    paragraph = made.add_paragraph()
    for text, what in runs:
        run = paragraph.add_run(text)
        if what:
            setattr(run.font, what, True)
    return docx_files.parse(saved(made), BOUNDS)


def shown(*boxes: tuple[float, float, str]) -> str:
    """The text of a slide with boxes at (x, y), made in this order."""
    made = pptx.Presentation()
    slide = made.slides.add_slide(made.slide_layouts[6])
    for x, y, text in boxes:
        slide.shapes.add_textbox(Inches(x), Inches(y), Inches(2), Inches(1)).text_frame.text = text
    return " ".join(pptx_files.parse(saved(made), BOUNDS).text.split())


def sheet(change: Callable[[Any], None], *rows: list[Any]) -> str:
    made = openpyxl.Workbook()
    for row in rows:
        made.active.append(row)
    change(made.active)
    return xlsx_files.parse(saved(made), BOUNDS).text


def drawn(content: str, *, annotations: tuple[str, ...] = ()) -> ParsedFile:
    """A PDF whose first page draws what PDF's own operators say."""
    made = make_pdf(["x"])
    start = made.index(b"stream\n") + 7
    end = made.index(b"\nendstream")
    body = content.encode("latin-1")
    made = made[:start] + body + made[end:]
    length = made.index(b"/Length ") + 8
    made = made[:length] + str(len(body)).encode() + made[made.index(b" >>", length) :]
    return pdf.parse(made, BOUNDS)


def line(text: str, y: int = 700, before: str = "") -> str:
    return f"q {before} BT /F1 12 Tf 72 {y} Td ({text}) Tj ET Q\n"


SMALL = "({}) Tj /F1 7 Tf 5 Ts ({}) Tj 0 Ts /F1 12 Tf ({}) Tj"


def raised(before: str, small: str, behind: str) -> str:
    return f"BT /F1 12 Tf 72 700 Td {SMALL.format(before, small, behind)} ET"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (lambda: page("10<sup>-3</sup> m, 5 cm<sup>2</sup>, x<sup>2</sup>"),
         "10^-3 m, 5 cm^2, x^2"),
        (lambda: page("In 1999<sup><a href='#n1'>4</a></sup> it rose"), "In 1999[4] it rose"),
        (lambda: page("the board<sup>12,13</sup> met"), "the board[12,13] met"),
        (lambda: page("3<sup>1</sup>/<sub>2</sub> miles"), "3 1/2 miles"),
        (lambda: page("log 8<sub>2</sub>, CO<sub>2</sub>, 2<sup>nd</sup>"), "log 8_2, CO2, 2nd"),
        (lambda: typed(("10", ""), ("6", "superscript"), (" l", "")), "10^6 l"),
        (lambda: typed(("fee 250", ""), ("9", "superscript"), (" crowns", "")),
         "fee 250[9] crowns"),
        (lambda: typed(("x7", ""), ("2", "subscript")), "x7_2"),
        (lambda: drawn(raised("It holds 10", "6", " l")), "It holds 10^6 l"),
        (lambda: drawn(raised("costs 4190", "3", " each")), "costs 4190[3] each"),
        (lambda: drawn(raised("of the members", "7", ".")), "of the members[7] ."),
        (lambda: drawn(raised("48 m", "2", " wide")), "48 m^2 wide"),
    ],
)  # fmt: skip
def test_small_digits_are_no_part_of_a_number(found: Callable[[], ParsedFile], text: str) -> None:
    assert text in found().text


@pytest.mark.parametrize(
    "hidden",
    [
        line("heron", 600, "1 1 1 rg"),  # white on white
        line("heron", 1900),  # off the page
        line("heron", 600, "3 Tr"),  # drawn without a colour
        "q BT /F1 0.5 Tf 72 600 Td (heron) Tj ET Q",  # of no size
        line("heron", 600) + "q 0 0 0 rg 60 590 100 30 re f Q",  # below a black box
        "q 0 0 0.5 rg 60 590 200 30 re f Q\n" + line("heron", 600, "0 0 0.5 rg"),  # blue on blue
    ],
)
def test_what_no_reader_sees_is_left_out_and_said(hidden: str) -> None:
    found = drawn(line("Seen.") + hidden)
    assert found.text == "Seen."
    assert [warning.code for warning in found.warnings] == ["hidden_text"]


@pytest.mark.parametrize(
    "seen",
    [
        "q 0 0 0.5 rg 60 590 200 30 re f Q\n" + line("heron", 600, "1 1 1 rg"),  # white on blue
        line("heron", 600, "0.9 0.9 0.9 rg"),
        "q 1 1 1 rg 0 0 612 792 re f Q\n" + line("heron", 600),
        line("heron", 600) + "q 0 0 0 RG 60 590 100 30 re S Q",  # a frame
    ],
)
def test_what_a_reader_sees_stays(seen: str) -> None:
    found = drawn(seen)
    assert "heron" in found.text and not found.warnings


def test_words_turned_otherwise_than_most_are_lines() -> None:
    turned = [Drawn(100 + 14 * row, 100, f"Pump number {row} is shut", turn=1) for row in range(6)]
    upright = [Drawn(72, 760, "This sheet is printed sideways."), Drawn(72, 40, "See the office.")]
    text = pdf.parse(draw_pdf([[upright[0], *turned, upright[1]]]), BOUNDS).text
    assert text.split("\n")[0] == "This sheet is printed sideways."
    assert text.endswith("See the office.") and "Pump number 3 is shut" in text


def table(rows: list[list[str]], top: int = 740) -> list[Drawn]:
    return [
        Drawn(72 + 120 * column, top - 15 * number, text)
        for number, row in enumerate(rows)
        for column, text in enumerate(row)
    ]


def test_rows_of_long_tables_name_their_columns_on_later_pages_too() -> None:
    head = ["Valve", "Weight", "Burst pressure"]
    rows = [[f"K{n}", f"{100 + n} kg", f"{20 + n} bar"] for n in range(30)]
    named = "Valve: K{0} | Weight: {1} kg | Burst pressure: {2} bar"
    text = pdf.parse(draw_pdf([table([head, *rows[:15]]), table(rows[15:])]), BOUNDS).text
    assert text.split() == " ".join(named.format(n, 100 + n, 20 + n) for n in range(30)).split()
    # The header again, and a caption above it.
    again = [Drawn(72, 760, "Table 2 (goes on)"), *table([head, *rows[15:]])]
    text = pdf.parse(draw_pdf([table([head, *rows[:15]]), again]), BOUNDS).text
    assert named.format(29, 129, 49) in text and "Valve Weight" not in text
    # A cell that goes on below.
    wrapped = table([head, *rows[:9]])
    wrapped[-1] = Drawn(312, wrapped[-1].y, "28 bar,")
    wrapped.append(Drawn(312, wrapped[-1].y - 12, "tested twice"))
    text = pdf.parse(draw_pdf([wrapped]), BOUNDS).text
    assert text.endswith("Burst pressure: 28 bar, tested twice")
    # A short one, whose header stands beside it, keeps its look; so does one without a header.
    assert "K3 103 kg 23 bar" in pdf.parse(draw_pdf([table([head, *rows[:5]])]), BOUNDS).text
    assert "K3 103 kg 23 bar" in pdf.parse(draw_pdf([table(rows)]), BOUNDS).text


LINK = "<< /Subtype /Link /Rect [70 695 130 715] /A << /S /URI /URI ({}) >> >>"


def linked(address: str) -> ParsedFile:
    made = docx.Document()
    paragraph = made.add_paragraph("The ")
    key = made.part.relate_to(address, RELATIONSHIP_TYPE.HYPERLINK, is_external=True)
    element = paragraph._p.makeelement(qn("w:hyperlink"), {qn("r:id"): key})
    element.append(paragraph.add_run("form")._r)
    paragraph._p.append(element)
    paragraph.add_run(" is here.")
    return docx_files.parse(saved(made), BOUNDS)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (lambda: page("<a href='https://a.org/f-77'>Form</a>, "
                       "<a href='https://a.org/f-77'>again</a>"),
         "Form (https://a.org/f-77), again"),
        (lambda: page("<a href='mailto:d@a.org?subject=x'>desk</a>"), "desk (d@a.org)"),
        (lambda: page("<a href='https://a.org/'>a.org</a> <a href='/in'>in</a> <a href='#x'>y</a>"),
         "a.org in y"),
        (lambda: page(f"<a href='https://a.org/x?{'u' * 300}'>News</a>"), "News (https://a.org/x)"),
        (lambda: linked("https://a.org/f-77"), "The form (https://a.org/f-77) is here."),
        (lambda: pdf.parse(draw_pdf([[Drawn(72, 700, "The form", 12)]],
                                    annotations=[LINK.format("https://a.org/f-77")]), BOUNDS),
         "(https://a.org/f-77)"),
    ],
)  # fmt: skip
def test_addresses_of_links_stay(found: Callable[[], ParsedFile], text: str) -> None:
    assert text in found().text


def test_addresses_in_cells_and_on_slides() -> None:
    def link(made: Any) -> None:
        made["A2"].hyperlink = "https://a.org/f-77"

    assert "Form (https://a.org/f-77) | Owner: Q" in sheet(link, ["Name", "Owner"], ["Form", "Q"])
    formula = '=HYPERLINK("https://a.org/9", "Safety")'
    text = sheet(lambda made: None, ["Name", "Owner"], [formula, "T"], ["x", "Q"])
    assert "Safety (https://a.org/9) | " in text
    made = pptx.Presentation()
    box = made.slides.add_slide(made.slide_layouts[6]).shapes.add_textbox(0, 0, 9999, 9999)
    run = box.text_frame.paragraphs[0].add_run()
    run.text, run.hyperlink.address = "Form", "https://a.org/f-77"
    assert pptx_files.parse(saved(made), BOUNDS).text == "Form (https://a.org/f-77)"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<select><option>Small<option selected>Large</select>", "Small, Large (chosen)"),
        ("Name <input value='Z-44'> <input type=hidden value=heron>", "Name Z-44"),
        ("<textarea>Left at the door</textarea>", "Left at the door"),
        ("<input type=checkbox checked> Fragile <input type=radio> Heavy", "[x] Fragile [ ] Heavy"),
        (
            "<button>What does it cost?</button><p>40</p><button>OK</button>",
            "What does it cost?\n40",
        ),
        ("<img src=a alt='First the green knob'><img src=b alt=Logo>", "First the green knob"),
        ("costs <s>310</s> <del>9</del> 345", "costs ~~310~~ ~~9~~ 345"),
    ],
)
def test_what_a_page_shows_otherwise_than_by_its_text(body: str, text: str) -> None:
    found = page(body)
    assert found.text.strip() == text
    assert [w.code for w in found.warnings] == (["controls"] if "OK" in body else [])


def test_what_is_struck_through_in_office() -> None:
    found = typed(("costs ", ""), ("310", "strike"), (" 345", ""), (" 9", "double_strike"))
    assert found.text == "costs ~~310~~ 345 ~~9~~"

    def strike(made: Any) -> None:
        made["B2"].font = Font(strike=True)

    assert "Price: ~~310~~" in sheet(strike, ["Name", "Price"], ["Berth", 310], ["Pier", 20])


@pytest.mark.parametrize(
    ("boxes", "text"),
    [
        ([(5, 1, "b1"), (1, 1, "a1"), (5, 3, "b2"), (1, 3, "a2")], "a1 a2 b1 b2"),
        ([(1, 5, "last"), (1, 1, "first"), (1, 3, "then")], "first then last"),
        ([(6, 2, "3"), (1, 2, "1"), (3.5, 2, "2")], "1 2 3"),
        ([(3, 0.2, "title"), (6, 2, "b"), (1, 2, "a"), (3, 6, "foot")], "title a b foot"),
        ([(1, 1, "one")], "one"),
    ],
)
def test_boxes_of_a_slide_are_read_as_they_stand(
    boxes: list[tuple[float, float, str]], text: str
) -> None:
    assert shown(*boxes) == text


def test_tables_side_by_side_hours_and_boilerplate() -> None:
    head = ["Valve", "Price", None, "Pump", "Flow"]
    text = sheet(lambda made: None, ["Valves", None, None, "Pumps"], head,
                 ["K1", 310, None, "P7", 90], ["K2", 345, None, "P8", 120])  # fmt: skip
    assert "Valve: K1 | Price: 310\nValve: K2 | Price: 345" in text
    assert "Pump: P7 | Flow: 90\nPump: P8 | Flow: 120" in text
    # A blank column may only set columns of one table apart.
    text = sheet(lambda made: None, head, ["K1", 310, None, "P7", 90], ["K2", 345, None, "P8", 9])
    assert "Valve: K1 | Price: 310 | Pump: P7 | Flow: 90" in text
    text = sheet(lambda made: None, ["Watch", "Hours"], ["Night", timedelta(hours=27, minutes=45)],
                 ["Day", timedelta(minutes=90, seconds=5)])  # fmt: skip
    assert "Hours: 27:45\n" in text and "Hours: 1:30:05" in text

    def remark(made: Any) -> None:
        old = "[Threaded comment]\n\nYour version of Excel …\n\nComment:\n    Ask the desk"
        made["A2"].comment = Comment(old, "Q")

    assert "Comment on A2: Ask the desk" in sheet(remark, ["Name", "Owner"], ["Form", "Q"])


def test_small_texts_on_slides() -> None:
    made = pptx.Presentation()
    box = made.slides.add_slide(made.slide_layouts[6]).shapes.add_textbox(0, 0, 9999, 9999)
    for text, what in (
        ("10", {}),
        ("6", {"baseline": "30000"}),
        (" ", {}),
        ("9", {"strike": "sngStrike"}),
    ):
        run = box.text_frame.paragraphs[0].add_run()
        run.text = text
        for name, value in what.items():
            run._r.get_or_add_rPr().set(name, value)
    out = BytesIO()
    made.save(out)
    assert pptx_files.parse(out.getvalue(), BOUNDS).text == "10^6 ~~9~~"


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("12,75;3,5\n13,80;4,25\n", "12,75 | 3,5\n13,80 | 4,25"),
        ("Preis;12,75;3,5\nKosten;13,80;4,25\n", "Preis | 12,75 | 3,5\nKosten | 13,80 | 4,25"),
        ("12,5|3\n13,5|4\n", "12,5 | 3\n13,5 | 4"),
        ("12,75\t3,5\n13,80\t4,25\n", "12,75 | 3,5\n13,80 | 4,25"),
        ("By X, Y\n\nDate;Sum\n2024-01-02;1,5\n", "By X, Y\nDate: 2024-01-02 | Sum: 1,5"),
        ("1,2,3\n4,5,6\n", "1 | 2 | 3\n4 | 5 | 6"),
        ("k,v\n1,5\n", "k: 1 | v: 5"),
        ("name,note\nA,x;y\nB,z;w\n", "name: A | note: x;y\nname: B | note: z;w"),
    ],
)
def test_commas_of_numbers_cut_no_cells(table: str, text: str) -> None:
    assert csv_files.parse(table.encode(), BOUNDS).text == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("| `x || y` | or |", "Cmd: `x || y` | Meaning: or"),
        ("`x | y` | or", "Cmd: `x | y` | Meaning: or"),
        ("| ``p | q`` | two |", "Cmd: ``p | q`` | Meaning: two"),
        ("| a | b | c | d |", "Cmd: a | Meaning: b | c | d"),
        ("| `a | b` |", "Cmd: `a | Meaning: b`"),  # as many cells as columns
        (r"| `a \| b` | fine |", "Cmd: `a | b` | Meaning: fine"),
        ("| `open | not closed |", "Cmd: `open | Meaning: not closed"),
    ],
)
def test_no_cell_of_markdown_is_left_out(row: str, text: str) -> None:
    parsed = text_files.parse_markdown(
        f"| Cmd | Meaning |\r\n|---|---|\r\n{row}\r\n".encode(), BOUNDS
    )
    assert parsed.text.strip() == text


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (1234.5, '#,##0.00 "EUR"', "1234.5 EUR"),
        (12, '0" pieces"', "12 pieces"),
        (80, '0 "km/h"', "80 km/h"),
        (5, "0.00 [$SEK-41D]", "5 SEK"),
        (3, "0.00E+00", "3"),
        (0.5, "# ?/?", "0.5"),
        (0.5, "0/100", "0.5"),
    ],
)
def test_units_of_cells_with_an_e_or_a_stroke(value: float, code: str, text: str) -> None:
    assert xlsx_files.formatted(value, code) == text


@pytest.mark.parametrize(
    ("lists", "lines"),
    [
        ("<ol><li>Fill<li>Boil</ol>", ["1. Fill", "2. Boil"]),
        ("<ol start=3><li>Fill<li value=7>Boil<li>Pour</ol>", ["3. Fill", "7. Boil", "8. Pour"]),
        ("<ol reversed><li>c<li>b</ol><ol start=-1><li>a<li>b</ol>",
         ["2. c", "1. b", "-1. a", "0. b"]),
        ("<ol type=A start=26><li>x<li>y</ol><ol type=i start=4><li>x</ol>",
         ["Z. x", "AA. y", "iv. x"]),
        ("<ol style='list-style-type: upper-roman'><li>x<li type=a>y</ol>", ["I. x", "b. y"]),
        # Items of paragraphs, as Sphinx writes them, and lists within.
        ("<ol><li><p>Fill</p><p>well</p></li><li><p>Boil</p><ol class='loweralpha simple'>"
         "<li><p>hot</p></li></ol></li><li></li><li>Pour</li></ol>",
         ["1. Fill", "well", "2. Boil", "a. hot", "4. Pour"]),
        ("<ol><li><ol><li>deep</ol></ol><p>after</p>", ["1. 1. deep", "after"]),
        # Numbers that are not shown, or stand in the text.
        ("<ol style='list-style: none'><li>Own</ol><ol><li>1.1 Scope<li>Two</ol>",
         ["- Own", "- 1.1 Scope", "2. Two"]),
        ("<ol start=x><li>a</ol><ul><li value=4>b</ul>", ["1. a", "- b"]),
        ("<table><tr><th>Isle<th>Steps<tr><td>Vik<td><ol start=4><li>Fill<li>Boil</ol></table>",
         ["Isle: Vik | Steps: 4. Fill; 5. Boil"]),
    ],
)  # fmt: skip
def test_items_of_ordered_lists_keep_their_numbers(lists: str, lines: list[str]) -> None:
    assert page(lists).text.splitlines() == lines


@pytest.mark.parametrize(
    ("lists", "lines"),
    [
        ("<ul><li><p>lid</p><p>of tin</p></li>\n<li>\n<div>hose</div></li><li><div><p>cap</ul>",
         ["- lid", "of tin", "- hose", "- cap"]),
        ("<ul><li><br>lid<li><p></p><li>&nbsp;<li><p>cap</ul><p>far", ["- lid", "- cap", "far"]),
        ("<ul><li><blockquote>lid</blockquote><li><pre>\n\na\n  b</pre></ul>",
         ["- lid", "- a", "  b"]),
        # Lists within lists: an item that begins with one has a dash no more, a number still.
        ("<ul><li><p>parts</p><ul><li><p>lid</ul><li><ul><li><p>deep</ul></ul>",
         ["- parts", "- lid", "- deep"]),
        ("<ul><li><ol><li><p>Fill<li>Boil</ol></ul>", ["1. Fill", "2. Boil"]),
        ("<ol><li><ul><li>lid<li>cap</ul><li><p>hose</ol>", ["1. - lid", "- cap", "2. hose"]),
        # Headings and tables of data keep their form.
        ("<ul><li><h3>Lid</h3><p>of tin<li><p>cap</ul>", ["### Lid", "of tin", "- cap"]),
        ("<ul><li><table><tr><td></td><td>lid</td></tr></table></ul>", ["- lid"]),
        ("<ol><li><table><tr><th>Isle<th>Port<tr><td>Vik<td>Quay</table>far</ol>"
         "<ul><li><table><tr><th>Isle<th>Port<tr><td>Vik<td>Quay</table>near</ul>",
         ["1.", "Isle: Vik | Port: Quay", "far", "Isle: Vik | Port: Quay", "near"]),
        # Lists in cells.
        ("<table><tr><th>Isle<th>Ports<tr><td>Vik<td>All:<ul><li><p>Quay</p><p>north</p><li><li>"
         "<div>Pier</div><ol><li><p>old</ol><li><ul><li>Dock</ul></ul></table>",
         ["Isle: Vik | Ports: All: Quay north; Pier; 1. old; Dock"]),
    ],
)  # fmt: skip
def test_items_of_paragraphs_keep_their_dashes(lists: str, lines: list[str]) -> None:
    assert page(lists).text.splitlines() == lines


@pytest.mark.parametrize(
    ("table", "rows", "unclosed"),
    [
        ('Part,Price\nhose,"3\npipe,4', ['Part: hose | Price: "3', "Part: pipe | Price: 4"], ["2"]),
        ('Part;Price\n"hose;3,5\nvalve;4,5\n',
         ['Part: "hose | Price: 3,5', "Part: valve | Price: 4,5"], ["2"]),
        # It meets a mark that another row begins with.
        ('Part,Size,Price\nhose,"3 inch,4\npipe,"2 inch, long",5\nvalve,"1 inch,6\n',
         ['Part: hose | Size: "3 inch | Price: 4', "Part: pipe | Size: 2 inch, long | Price: 5",
          'Part: valve | Size: "1 inch | Price: 6'], ["2", "4"]),
        # Marks within a cell, and cells of several lines, are what they were.
        ('a,b\n1,"x\n""y"" z"\n2,"12" wide', ['a: 1 | b: x "y" z', "a: 2 | b: 12 wide"], []),
        ('a,b\n1,"line one\nline "two" ends"\n2,c',
         ['a: 1 | b: line one line two" ends"', "a: 2 | b: c"], []),
    ],
)  # fmt: skip
def test_quotation_marks_that_nothing_closes_swallow_no_rows(
    table: str, rows: list[str], unclosed: list[str]
) -> None:
    found = csv_files.parse(table.encode(), BOUNDS)
    assert found.text.splitlines() == rows
    assert [place for w in found.warnings for place in w.places] == unclosed


def test_open_quotation_marks_in_all_rows_cost_no_more_than_rows() -> None:
    found = csv_files.parse(("a,b\n" + 'x"y,"\n' * 20_000).encode(), Bounds(50, 10_000_000))
    assert len(found.text.splitlines()) == 20_000
    assert found.warnings[0].count == 20_000
