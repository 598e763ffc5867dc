"""OpenDocument: what writers, spreadsheets and slides hold besides plain paragraphs."""

from __future__ import annotations

from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch_formats import open_document
from tests_formats.made_files import OPEN_DOCUMENT, make_open_document

BOUNDS = Bounds(50, 100_000)
LEVELS = (
    '<text:list-style style:name="L"><text:list-level-style-number text:level="1" '
    'style:num-suffix="." style:num-format="1" text:start-value="2"/>'
    '<text:list-level-style-number text:level="2" style:num-format="a" text:display-levels="2"/>'
    '</text:list-style><text:list-style style:name="B"><text:list-level-style-bullet '
    'text:level="1"/></text:list-style>'
    '<text:outline-style><text:outline-level-style text:level="1" style:num-format="I"/>'
    '<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/>'
    "</text:outline-style>"
)
HIDDEN = (
    '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    '<style:style style:name="S"><style:table-properties table:display="false"/></style:style>'
    '<style:style style:name="D"><style:drawing-page-properties '
    'presentation:visibility="hidden"/></style:style>'
)


def read(
    kind: str, body: str, *, styles: str = "", files: dict[str, str] | None = None
) -> ParsedFile:
    content = make_open_document(kind, body, styles=styles, files=files)
    return open_document.parse(content, BOUNDS)


def p(inside: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{inside}</text:p>'


def lines(found: ParsedFile) -> list[str]:
    return [line for line in found.text.split("\n") if line]


def counted(found: ParsedFile) -> dict[str, int]:
    return {warning.code: warning.count for warning in found.warnings}


def test_headings_and_lists_are_numbered_as_they_are_printed() -> None:
    def listed(*items: str, style: str = "L", more: str = "") -> str:
        inside = "".join(f"<text:list-item>{item}</text:list-item>" for item in items)
        return f'<text:list text:style-name="{style}" {more}>{inside}</text:list>'

    def h(level: int, text: str) -> str:
        return f'<text:h text:outline-level="{level}">{text}</text:h>'

    inner = "<text:list><text:list-item>" + p("frost") + "</text:list-item><text:list-item>"
    found = read(
        "text",
        h(1, "Scope") + h(2, "Goods") + h(1, "Rent") + h(2, "Sum")
        + listed(p("ice") + p("more of it"), p("snow") + inner + p("hail")
                 + "</text:list-item></text:list>")
        + listed(p("on"), more='text:continue-numbering="true"') + listed(p("anew"))
        + listed(p("dot"), style="B"),
        styles=LEVELS,
    )  # fmt: skip
    assert lines(found) == [
        "# I Scope", "## I.1 Goods", "# II Rent", "## II.1 Sum", "2. ice", "more of it", "3. snow",
        "3.a frost", "3.b hail", "4. on", "2. anew", "- dot",
    ]  # fmt: skip
    assert found.title == "Scope"
    assert [label for _, _, label in found.marks][:2] == ["I Scope", "I.1 Goods"]


def test_words_within_paragraphs() -> None:
    math = (
        '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>x</mi><mn>2</mn></msup></math>'
    )
    found = read(
        "text",
        "<text:tracked-changes><text:changed-region>" + p("deleted") + "</text:changed-region>"
        "</text:tracked-changes>"
        + p('A  lid<text:s text:c="2"/>of\n glass<text:tab/>and<text:line-break/>a '
            "<text:span>handle</text:span>.")
        + p("<text:ruby><text:ruby-base>東</text:ruby-base><text:ruby-text>とう</text:ruby-text>"
            "</text:ruby>京")
        + p('It is <draw:frame><draw:object xlink:href="./Object 1"/></draw:frame>.')
        + p('Seen<text:span text:style-name="H">, unseen</text:span>.') + p("Unseen.", "H")
        + p('Valves<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation>'
            f"<text:note-body>{p('Two.')}</text:note-body></text:note>.<office:annotation>"
            f"<dc:creator>Ada</dc:creator><dc:date>2024</dc:date>{p('Which?')}</office:annotation>"
            f"<draw:frame><draw:text-box>{p('Do not open.')}</draw:text-box></draw:frame>"
            "<draw:frame><draw:image/></draw:frame>"),
        styles=HIDDEN,
        files={"Object 1/content.xml": math},
    )  # fmt: skip
    assert lines(found) == [
        "A lid  of glass\tand", "a handle.", "東京", "It is x^2.", "Seen.", "Valves.",
        "Footnote: Two.", "Comment by Ada: Which?", "Do not open.",
    ]  # fmt: skip
    assert counted(found) == {"hidden_text": 2, "readings_left_out": 1, "pictures": 1}


def cells(*texts: str, more: str = "") -> str:
    return "".join(f"<table:table-cell {more}>{p(text)}</table:table-cell>" for text in texts)


def row(*texts: str, more: str = "") -> str:
    return f"<table:table-row {more}>{cells(*texts)}</table:table-row>"


def test_tables_of_texts_name_their_columns() -> None:
    covered = "<table:covered-table-cell/>"
    found = read(
        "text",
        "<table:table><table:table-header-rows>" + row("Town", "Ship", "Bell")
        + "</table:table-header-rows><table:table-row>"
        + cells("Lorvik", more='table:number-rows-spanned="2"') + cells("Heron", "Low")
        + f"</table:table-row><table:table-row>{covered}{cells('Tern', 'High')}</table:table-row>"
        "</table:table>",
    )  # fmt: skip
    assert lines(found) == [
        "Town: Lorvik | Ship: Heron | Bell: Low", "Town: Lorvik | Ship: Tern | Bell: High",
    ]  # fmt: skip


def test_sheets_with_repeated_and_hidden_cells() -> None:
    blank = '<table:table-cell table:number-columns-repeated="16383"/>'
    empty = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell/>'
    found = read(
        "spreadsheet",
        '<table:table table:name="Prices"><table:table-column/><table:table-column '
        'table:visibility="collapse"/><table:table-column table:number-columns-repeated="9"/>'
        f"<table:shapes><draw:custom-shape>{p('Push here.')}</draw:custom-shape></table:shapes>"
        + row("Part", "Cost", "Price") + row("lid", "1", "2")
        + row("cup", "3", "4", more='table:visibility="filter"')
        + "<table:table-row>" + cells("mug") + "<table:table-cell/>"
        + cells("5", more='table:number-columns-repeated="1"') + blank + "</table:table-row>"
        + empty + "</table:table-row></table:table>"
        + f'<table:table table:name="Old" table:style-name="S">{row("gone")}</table:table>'
        + '<table:table table:name="None"/>',
        styles=HIDDEN,
    )  # fmt: skip
    assert lines(found) == [
        "## Prices", "Part: lid | Price: 2", "Part: mug | Price: 5", "Push here.", "## None",
        "(no rows)",
    ]  # fmt: skip
    assert [mark[1:] for mark in found.marks] == [("sheet", "Prices"), ("sheet", "None")]
    assert counted(found) == {"hidden_sheets": 1, "hidden_cells": 1}


def test_slides_with_titles_notes_and_hidden_ones() -> None:
    def slide(title: str, body: str, more: str = "") -> str:
        return (
            f"<draw:page {more}><draw:frame><draw:text-box>{p(body)}</draw:text-box></draw:frame>"
            f'<draw:frame presentation:class="title"><draw:text-box>{p(title)}</draw:text-box>'
            '</draw:frame><draw:frame presentation:class="outline" presentation:placeholder="true">'
            f"<draw:text-box>{p('Click to add text')}</draw:text-box></draw:frame>"
            f"<presentation:notes><draw:frame><draw:text-box>{p('Slowly.')}</draw:text-box>"
            "</draw:frame></presentation:notes></draw:page>"
        )

    body = slide("Kettle", "It boils.") + slide("Old", "x", 'draw:style-name="D"')
    meta = f"<office:document-meta {OPEN_DOCUMENT}><dc:title>Talk</dc:title></office:document-meta>"
    found = read("presentation", body, styles=HIDDEN, files={"meta.xml": meta})
    assert lines(found) == ["## Kettle", "It boils.", "Notes: Slowly."]
    assert found.title == "Talk" and counted(found) == {"hidden_slides": 1}
    assert [mark[1:] for mark in found.marks] == [("slide", "1"), ("heading", "Kettle")]
