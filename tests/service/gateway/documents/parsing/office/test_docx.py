"""DOCX: what Word keeps apart from the plain text, and what is not text."""

from __future__ import annotations

import zipfile
from io import BytesIO

import pytest

from kvstitch.service.gateway.documents.parsing.office import docx
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from tests.service.gateway.documents.office_files import changed_zip, make_docx

BOUNDS = Bounds(50, 100_000)
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
OFFICE = "application/vnd.openxmlformats-officedocument."
NAMES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    f'xmlns:r="{REL}" xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:v="urn:schemas-microsoft-com:vml" xmlns:o="urn:schemas-microsoft-com:office:office" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" '
    'xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture" '
    'xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"'
)


def read(body: str, **parts: str) -> ParsedFile:
    """A document with these blocks; `parts`: the body of a part by the name of its relationship."""
    whole = make_docx("x")
    with zipfile.ZipFile(BytesIO(whole)) as archive:
        rels = archive.read("word/_rels/document.xml.rels").decode()
        types = archive.read("[Content_Types].xml").decode()
    changed: dict[str, str | bytes] = {
        "word/document.xml": f"<w:document {NAMES}><w:body>{body}</w:body></w:document>"
    }
    for kind, text in parts.items():
        if kind in ("styles", "numbering"):
            changed[f"word/{kind}.xml"] = text
            continue
        changed[f"word/{kind}9.xml"] = text
        link = f'<Relationship Id="{kind}" Type="{REL}/{kind}" Target="{kind}9.xml"/>'
        rels = rels.replace("</Relationships>", link + "</Relationships>")
        name = f'<Override PartName="/word/{kind}9.xml" ContentType="application/xml"/>'
        types = types.replace("</Types>", name + "</Types>")
    changed |= {"word/_rels/document.xml.rels": rels, "[Content_Types].xml": types}
    return docx.parse(changed_zip(whole, changed), BOUNDS)


def r(text: str, properties: str = "") -> str:
    head = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{head}<w:t xml:space="preserve">{text}</w:t></w:r>'


def p(inside: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr>{inside}</w:p>"


def counted(found: ParsedFile) -> dict[str, int]:
    return {warning.code: warning.count for warning in found.warnings}


def test_content_controls_within_lines_and_around_blocks() -> None:
    def control(inside: str, more: str = "") -> str:
        return f"<w:sdt><w:sdtPr>{more}</w:sdtPr><w:sdtContent>{inside}</w:sdtContent></w:sdt>"

    found = read(
        p(r("Signed by ") + control(control(r("Ada"))) + r(" on ") + control(r("4 May")))
        + control(p(r("Inside.")) + control(p(r("Deeper."))))
        + p(r("Price: ") + control(r("Click to enter text."), "<w:showingPlcHdr/>"))
        + f"<w:customXml>{p(r('Marked up.'))}</w:customXml>"
    )
    assert found.text.split("\n\n") == [
        "Signed by Ada on 4 May", "Inside.", "Deeper.", "Price:", "Marked up."
    ]  # fmt: skip


BOX = "<w:txbxContent>{}</w:txbxContent>"


@pytest.mark.parametrize(
    "drawing",
    [
        "<mc:AlternateContent><mc:Choice Requires='wps'><w:drawing>{}</w:drawing></mc:Choice>"
        "<mc:Fallback><w:pict><v:textbox>{}</v:textbox></w:pict></mc:Fallback>"
        "</mc:AlternateContent>",
        "<w:pict><v:shape><v:textbox>{}</v:textbox></v:shape></w:pict>",
        "<mc:AlternateContent><mc:Fallback><w:pict>{}</w:pict></mc:Fallback></mc:AlternateContent>",
    ],
    ids=["two versions", "old", "old alone"],
)
def test_text_boxes_stand_once_behind_their_paragraph(drawing: str) -> None:
    box = BOX.format(p(r("Do not open.")) + p(r("Ask first.")))
    body = p(r("Valves.") + f"<w:r>{drawing.replace('{}', box)}</w:r>") + p(r("Pumps."))
    assert read(body).text.split("\n\n") == ["Valves.", "Do not open.", "Ask first.", "Pumps."]


def test_footnotes_endnotes_and_comments() -> None:
    def notes(kind: str, name: str) -> str:
        return (
            f'<w:{kind}s {NAMES}><w:{kind} w:type="separator" w:id="0">{p(r("---"))}</w:{kind}>'
            f'<w:{kind} w:id="2" w:author="Bob">{p(r(name))}</w:{kind}></w:{kind}s>'
        )

    found = read(
        p(r("Sold.") + '<w:r><w:footnoteReference w:id="2"/></w:r>')
        + "<w:tbl><w:tr><w:tc>"
        + p(r("Kept.") + '<w:r><w:endnoteReference w:id="2"/></w:r>')
        + "</w:tc></w:tr></w:tbl>"
        + p(r("Lent.") + '<w:r><w:commentReference w:id="2"/></w:r>'),
        footnotes=notes("footnote", "With consent."),
        endnotes=notes("endnote", "For ever."),
        comments=notes("comment", "To whom?"),
    )
    assert found.text.split("\n\n") == [
        "Sold.", "Footnote: With consent.", "Kept.", "Endnote: For ever.", "Lent.",
        "Comment by Bob: To whom?",
    ]  # fmt: skip


def mr(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (f"<m:sSubSup><m:e>{mr('x')}</m:e><m:sub>{mr('i')}</m:sub><m:sup>{mr('n+1')}</m:sup>"
         "</m:sSubSup>", "x_i^(n+1)"),
        (f"<m:rad><m:radPr/><m:deg>{mr('3')}</m:deg><m:e>{mr('a')}</m:e></m:rad>", "√[3](a)"),
        (f"<m:nary><m:naryPr><m:chr m:val='∑'/></m:naryPr><m:sub>{mr('i=1')}</m:sub>"
         f"<m:sup>{mr('n')}</m:sup><m:e>{mr('a')}</m:e></m:nary>", "∑_(i=1)^n a"),
        ("<m:d><m:dPr><m:begChr m:val='['/><m:endChr m:val=']'/></m:dPr>"
         f"<m:e>{mr('t')}</m:e></m:d>",
         "[t]"),
        (f"<m:m><m:mr><m:e>{mr('1')}</m:e><m:e>{mr('0')}</m:e></m:mr><m:mr><m:e>{mr('0')}</m:e>"
         f"<m:e>{mr('1')}</m:e></m:mr></m:m>", "[1, 0; 0, 1]"),
    ],
)  # fmt: skip
def test_equations_within_and_beside_text(formula: str, text: str) -> None:
    body = p(r("It is ") + f"<m:oMath>{formula}</m:oMath>" + r(".")) + p(
        f"<m:oMathPara><m:oMath>{formula}</m:oMath></m:oMathPara>"
    )
    assert read(body).text == f"It is {text}.\n\n{text}"


STYLES = (
    f"<w:styles {NAMES}>"
    '<w:style w:type="paragraph" w:styleId="P"><w:name w:val="Article"/><w:pPr><w:numPr>'
    '<w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="Q"><w:name w:val="Section"/><w:basedOn w:val="P"/>'
    '<w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:style>'
    '<w:style w:type="character" w:styleId="S"><w:name w:val="Secret"/><w:rPr><w:vanish/></w:rPr>'
    "</w:style></w:styles>"
)
NUMBERING = (
    f'<w:numbering {NAMES}><w:abstractNum w:abstractNumId="4">'
    '<w:lvl w:ilvl="0"><w:start w:val="3"/><w:numFmt w:val="upperRoman"/>'
    '<w:lvlText w:val="Article %1."/></w:lvl>'
    '<w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:isLgl/>'
    '<w:lvlText w:val="§ %1.%2"/></w:lvl>'
    '<w:lvl w:ilvl="2"><w:start w:val="27"/><w:numFmt w:val="lowerLetter"/>'
    '<w:lvlText w:val="%3)"/></w:lvl>'
    '<w:lvl w:ilvl="3"><w:start w:val="1"/><w:numFmt w:val="bullet"/><w:lvlText w:val="•"/></w:lvl>'
    '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="4"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="4"/><w:lvlOverride w:ilvl="0">'
    '<w:startOverride w:val="9"/></w:lvlOverride></w:num></w:numbering>'
)


def test_numbers_of_clauses() -> None:
    """By style and base, in other letters, legal digits, restarted, after a jump, and none."""

    def listed(depth: int, number: int = 1) -> str:
        return f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>'

    article, section = '<w:pStyle w:val="P"/>', '<w:pStyle w:val="Q"/>'
    found = read(
        p(r("Scope"), article) + p(r("Goods"), section) + p(r("Ships"), section)
        + p(r("Rent"), article) + p(r("Sum"), section) + p(r("frost"), listed(2))
        + p(r("ice"), listed(2)) + p(r("dot"), listed(3))
        + p(r("None"), article + listed(0, 0)) + p(r("Again"), listed(0, 2)),
        styles=STYLES,
        numbering=NUMBERING,
    )  # fmt: skip
    assert [line for line in found.text.split("\n") if line] == [
        "Article III. Scope", "§ 3.1 Goods", "§ 3.2 Ships", "Article IV. Rent", "§ 4.1 Sum",
        "aa) frost", "bb) ice", "- dot", "None", "Article IX. Again",
    ]  # fmt: skip


def test_hidden_moved_and_deleted_text() -> None:
    found = read(
        p(
            r("Seen. ")
            + r("By style.", '<w:rStyle w:val="S"/>')
            + r("Off.", '<w:vanish w:val="0"/>')
        )
        + f'<w:p><w:moveFrom w:id="1">{r("The date is May.")}</w:moveFrom></w:p>'
        + p(r("Between."))
        + f'<w:p><w:moveTo w:id="1">{r("The date is May.")}</w:moveTo></w:p>'
        + f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc>{p(r('Gone'))}</w:tc></w:tr>"
        f"<w:tr><w:trPr><w:hidden/></w:trPr><w:tc>{p(r('Unseen'))}</w:tc></w:tr>"
        f"<w:tr><w:tc>{p(r('Kept'))}</w:tc></w:tr></w:tbl>",
        styles=STYLES,
    )
    assert found.text.split("\n\n") == ["Seen. Off.", "Between.", "The date is May.", "Kept"]
    assert counted(found) == {"hidden_text": 2}


def test_ends_of_paragraphs_and_cells_that_are_deleted() -> None:
    """Words are whole again, numbers go on, and what moved stands in its new place alone."""
    gone = "<w:rPr><w:del/></w:rPr>"
    number = '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'
    deleted = "<w:del><w:r><w:delText>Fees</w:delText></w:r></w:del>"
    moved = '<w:moveFromRangeStart w:id="1"/><w:moveFrom>{}</w:moveFrom>'

    def row(*cells: str) -> str:
        inside = "".join(
            f"<w:tc><w:tcPr>{'<w:cellDel/>' * (cell == 'Old')}</w:tcPr>{p(r(cell))}</w:tc>"
            for cell in cells
        )
        return f"<w:tr>{inside}</w:tr>"

    found = read(
        p(r("The con"), gone) + '<w:bookmarkEnd w:id="7"/>' + p(r("tr"), gone) + p(r("act ends."))
        + p(r("Rent"), number) + p(deleted, number + gone) + p(r("Sum"), number)
        + p(moved.format(r("In May.")), "<w:rPr><w:moveFrom/></w:rPr>") + p(r("Then."))
        + p(f"<w:moveTo>{r('In May.')}</w:moveTo>", "<w:rPr><w:moveTo/></w:rPr>")
        + "<w:tbl>" + row("Town", "Old", "Ship") + row("Lorvik", "Old", "Heron 5") + "</w:tbl>",
        styles=STYLES,
        numbering=NUMBERING,
    )  # fmt: skip
    assert [line for line in found.text.split("\n") if line] == [
        "The contract ends.", "Article III. Rent", "Article IV. Sum", "Then.", "In May.",
        "Town | Ship", "Lorvik | Heron 5",
    ]  # fmt: skip


CHART = (
    f"<c:chartSpace {NAMES}><c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Tides</a:t></a:r></a:p>"
    "</c:rich></c:tx></c:title><c:plotArea><c:barChart><c:ser><c:tx><c:strRef><c:strCache>"
    '<c:pt idx="0"><c:v>Lorvik</c:v></c:pt></c:strCache></c:strRef></c:tx><c:cat><c:strRef>'
    '<c:strCache><c:pt idx="0"><c:v>May</c:v></c:pt><c:pt idx="1"><c:v>June</c:v></c:pt>'
    "</c:strCache></c:strRef></c:cat><c:val><c:numRef><c:numCache>"
    '<c:pt idx="0"><c:v>2.5</c:v></c:pt><c:pt idx="1"><c:v>3.1</c:v></c:pt>'
    "</c:numCache></c:numRef></c:val></c:ser></c:barChart></c:plotArea></c:chart></c:chartSpace>"
)
DIAGRAM = (
    f"<dgm:dataModel {NAMES}><dgm:ptLst>"
    + "".join(
        f'<dgm:pt modelId="{n}" type="{kind}"><dgm:t><a:p><a:r><a:t>{text}</a:t></a:r></a:p>'
        "</dgm:t></dgm:pt>"
        for n, (kind, text) in enumerate([("doc", ""), ("node", "Plan"), ("node", "Build"),
                                          ("pres", "Plan")])
    )
    + "</dgm:ptLst></dgm:dataModel>"
)  # fmt: skip


def test_charts_diagrams_pictures_and_objects() -> None:
    drawing = "<w:r><w:drawing><a:graphicData>{}</a:graphicData></w:drawing></w:r>"
    found = read(
        p(r("See:") + drawing.format('<c:chart r:id="chart"/>'))
        + p(drawing.format('<dgm:relIds r:dm="diagramData"/>') + drawing.format("<pic:pic/>"))
        + p("<w:r><w:object><v:shape><v:imagedata/></v:shape><o:OLEObject/></w:object></w:r>"),
        chart=CHART,
        diagramData=DIAGRAM,
    )
    assert found.text == (
        "See:\n\nTides\n\nCategory: May | Lorvik: 2.5\nCategory: June | Lorvik: 3.1\n\nPlan\nBuild"
    )
    assert counted(found) == {"pictures": 2, "embedded_objects": 1}


def test_fields_of_forms_symbols_and_readings() -> None:
    ruby = f"<w:r><w:ruby><w:rt>{r('とう')}</w:rt><w:rubyBase>{r('東')}</w:rubyBase></w:ruby></w:r>"
    checked = "<w:checkBox><w:checked/></w:checkBox>"
    box = f"<w:r><w:fldChar><w:ffData>{checked}</w:ffData></w:fldChar></w:r>"
    choice = (
        '<w:r><w:fldChar><w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="north"/>'
        '<w:listEntry w:val="south"/></w:ddList></w:ffData></w:fldChar></w:r>'
    )
    tick = '<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>'
    found = read(p(ruby + r("京 ") + box + r(" paid, ") + choice + r(" ") + tick))
    assert found.text == "東京 [x] paid, south ☒"
    assert counted(found) == {"readings_left_out": 1}


def test_headers_are_kept_once() -> None:
    header = f"<w:hdr {NAMES}>{p(r('Marlowe Board, strictly confidential'))}</w:hdr>"
    found = read(p(r("Text.")), header=header)
    assert found.text == "Text.\n\nHeader: Marlowe Board, strictly confidential"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (p(r("DRAFT")), "DRAFT"),
        (p('<w:r><w:pict><v:textpath string="SECRET"/></w:pict></w:r>'), "SECRET"),
        (p(r("Page ") + '<w:fldSimple w:instr=" PAGE ">' + r("3") + "</w:fldSimple>"), ""),
        (p(r("Page 3") + "<w:r><w:instrText> NUMPAGES </w:instrText></w:r>"), ""),
        (p(r("7")), ""),
    ],
)
def test_short_headers_are_kept_unless_they_count_pages(header: str, kept: str) -> None:
    found = read(p(r("Text.")), header=f"<w:hdr {NAMES}>{header}</w:hdr>")
    assert found.text == ("Text.\n\nHeader: " + kept if kept else "Text.")


def test_a_marked_header_of_a_table_and_cells_before_it() -> None:
    def row(*cells: str, more: str = "") -> str:
        inside = "".join(f"<w:tc>{p(r(cell))}</w:tc>" for cell in cells)
        return f"<w:tr><w:trPr>{more}</w:trPr>{inside}</w:tr>"

    found = read(
        "<w:tbl>"
        + row("Town", "Ship", more="<w:tblHeader/>")
        + row("Lorvik", "Heron")
        + row("Tern", more='<w:gridBefore w:val="1"/>')
        + "</w:tbl>"
    )
    assert found.text == "Town: Lorvik | Ship: Heron\nShip: Tern"
