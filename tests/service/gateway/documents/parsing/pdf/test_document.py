"""PDF: words, columns, scripts, running lines, forms and remarks, and what is missing."""

from __future__ import annotations

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch.service.gateway.documents.parsing.pdf import document
from tests.service.gateway.documents.encrypted_pdfs import AES_128, AES_256, LOCKED
from tests.service.gateway.documents.pdfs import Drawn, draw_pdf

BOUNDS = Bounds(50, 100_000)


def column(x: float, texts: list[str], top: float = 700) -> list[Drawn]:
    return [Drawn(x, top - 14 * row, text) for row, text in enumerate(texts)]


def read(*pages: list[Drawn], **more: object) -> ParsedFile:
    return document.parse(draw_pdf(pages, **more), BOUNDS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["Das Wasser flie\u00dft in die Gegen-", "richtung ab."], "Gegenrichtung\nab."),
        (["This state-of-the-art re-", "sult, long-term stable."], "re-sult|result,\nlong-term"),
        (["The long-", "term plan is a long-term plan."], "The long-term\nplan is"),
        (["Order part PPR-", "9087 today."], "part PPR-9087\ntoday."),
        (["Die Vor-", "und Nachteile der Bahn."], "Die Vor-\nund Nachteile"),
        (["\u043f\u0440\u043e\u0432\u0435\u0440-", "\u043a\u0430 \u0433\u043e\u0434\u0430"],
         "\u043f\u0440\u043e\u0432\u0435\u0440\u043a\u0430\n\u0433\u043e\u0434\u0430"),
        (["A soft hy\u00ad", "phen is no character."], "soft hyphen\nis no"),
    ],
)  # fmt: skip
def test_words_divided_at_the_end_of_a_line(lines: list[str], text: str) -> None:
    found = read(column(72, lines)).text
    assert any(part in found for part in text.split("|")), found


def test_a_word_divided_between_pages() -> None:
    found = read(column(72, ["The ther-"]), column(72, ["mometer broke."]))
    assert found.text == "The thermometer\n\nbroke."
    assert [found.text[at:][:5] for at, _, label in found.marks if label == "2"] == ["broke"]


def test_chinese_lines_are_joined_within_a_paragraph() -> None:
    found = read(column(72, ["\u4ed3\u5e93\u4f4d\u4e8e\u4e1c\u4eac\u90fd\u4fdd\u4fee",
                             "\u671f\u4e24\u5e74\u5e76\u53ef\u5ef6\u957f\u534a\u5e74",
                             "\u7ed3\u675f\u3002"]))  # fmt: skip
    assert "\u4fdd\u4fee\u671f\u4e24\u5e74" in found.text


LEFT = [
    "The heron nests in the old",
    "wheelhouse by the weir and",
    "eats what the ferry leaves.",
    "It",
]
RIGHT = ["Bread is baked on Tuesdays", "in the mill behind the quay", "and sold until it is gone."]
THIRD = [
    "Lamps are lit when the fog",
    "comes in from the north, as",
    "the law of the harbour asks.",
]


@pytest.mark.parametrize("drawn", ["by row", "by column", "by row, jittered"])
def test_columns_are_read_one_after_the_other(drawn: str) -> None:
    left, right = column(60, LEFT), column(320, RIGHT, 700.8 if "jittered" in drawn else 700)
    head, foot = (
        [Drawn(60, 740, "A title over both of the columns of this page")],
        [Drawn(60, 600, "And a line of full width that stands below both columns.")],
    )
    if drawn == "by column":
        body = left + right
    else:
        body = [one for pair in zip(left, right, strict=False) for one in pair] + left[3:]
    text = " ".join(read([*head, *body, *foot]).text.split())
    assert text == " ".join([head[0].text, *LEFT, *RIGHT, foot[0].text])


def test_three_columns() -> None:
    drawn = zip(column(40, LEFT), column(230, RIGHT), column(420, THIRD), strict=False)
    text = " ".join(read([one for row in drawn for one in row]).text.split())
    assert text == " ".join([*LEFT[:3], *RIGHT, *THIRD])


def test_rows_of_a_table_stay_rows() -> None:
    rows = [("Kettle", "20 crowns", "two years"), ("Toaster", "35 crowns", "one year"),
            ("Mixer", "41 crowns", "one year"), ("Grill", "60 crowns", "none")]  # fmt: skip
    drawn = [Drawn(x, 700 - 14 * n, text) for n, row in enumerate(rows)
             for x, text in zip((60, 200, 340), row, strict=True)]  # fmt: skip
    assert read(drawn).text.split("\n") == [" ".join(row) for row in rows]


def test_arabic_in_positional_forms_and_from_right_to_left() -> None:
    """As programs draw it: glyphs from left to right as they are seen."""
    seen = "\ufee3\ufeae\ufea3\ufe92\ufe8e"[::-1]  # marhaban in initial, medial and final forms
    assert read([Drawn(72, 700, f"2024 {seen}")]).text == "\u0645\u0631\u062d\u0628\u0627 2024"


def test_readings_above_words_are_left_out_and_counted() -> None:
    found = read(
        [
            Drawn(72, 700, "\u6771\u4eac", 12),
            Drawn(72, 712.5, "\u3068\u3046\u304d\u3087\u3046", 5),
            Drawn(96, 700, "\u90fd\u306e\u5929\u6c17\u306f\u96e8", 12),
        ]
    )
    assert found.text == "\u6771\u4eac\u90fd\u306e\u5929\u6c17\u306f\u96e8"
    assert [(w.code, w.count) for w in found.warnings] == [("readings_left_out", 1)]


def test_running_lines_are_kept_once() -> None:
    """Alternating headers, a footer with the page's number; the text's first line is no header."""
    facts = ["Valves close at 4 bar.", "Grease it monthly.", "Bronze is used.", "Drain it first.",
             "It takes 2 kilowatts.", "Seals come in pairs.", "Tighten it.", "Listen."]  # fmt: skip
    pages = [
        [
            Drawn(60, 760, "Chapter 3: Pumps" if n % 2 else "Marlowe Handbook 2024"),
            Drawn(60, 700, f"Step {n}"),
            Drawn(60, 686, fact),
            Drawn(300, 30, f"{n} / 8"),
        ]
        for n, fact in enumerate(facts, 1)
    ]
    text = read(*pages).text
    assert text.count("Chapter 3: Pumps") == text.count("Marlowe Handbook") == 1
    assert " / 8" not in text
    assert all(f"Step {n}\n{fact}" in text for n, fact in enumerate(facts, 1))


FIELD = "<< /Type /Annot /Subtype /Widget /F 4 /Rect [{rect}] /T ({name}) {more} >>"
NOTE = "<< /Type /Annot /Subtype /{kind} /Rect [400 700 420 720] /Contents ({text}) {more} >>"


def test_forms_and_remarks() -> None:
    labels = ["Name:", "Town:", "Newsletter", "Colour:", "Password:"]
    found = read(
        column(60, labels),
        annotations=[
            FIELD.format(rect="160 697 300 711", name="a", more="/FT /Tx /V (Ada Quastel)"),
            FIELD.format(rect="160 683 300 697", name="b", more="/FT /Ch /Ff 131072 /Opt [(Lorvik) "
                         "(Zanska)] /V (Zanska)"),
            FIELD.format(rect="40 669 52 683", name="c", more="/FT /Btn /V /Off /AS /Off"),
            FIELD.format(rect="160 655 300 669", name="d", more="/FT /Tx /V (red)")
            .replace("/F 4", "/F 2"),  # hidden
            FIELD.format(rect="160 641 300 655", name="e", more="/FT /Tx /Ff 8192 /V (secret)"),
            NOTE.format(kind="Text", text="Check the sum.", more="/T (Bob)"),
            NOTE.format(kind="Highlight", text="too dear", more=""),
            NOTE.format(kind="Link", text="no remark", more=""),
        ],
    )  # fmt: skip
    assert found.text.split("\n") == [
        "Name: Ada Quastel", "Town: Zanska", "[ ] Newsletter", "Colour:", "Password:", "",
        "Remark by Bob: Check the sum.", "", "Remark: too dear",
    ]  # fmt: skip


def test_what_is_typed_onto_a_page_stands_where_it_is() -> None:
    typed = NOTE.format(kind="FreeText", text="4 May 2017", more="").replace(
        "400 700 420 720", "120 697 200 711"
    )
    assert read(column(60, ["Date:", "Place: Lorvik"]), annotations=[typed]).text == (
        "Date: 4 May 2017\nPlace: Lorvik"
    )


def test_scans_are_named_and_blank_pages_are_not() -> None:
    found = read(
        column(60, LEFT), [], [Drawn(60, 30, "Scanned by hand")], [], pictures=(2, 3),
    )  # fmt: skip
    said = {warning.code: warning.places for warning in found.warnings}
    assert said == {"pages_without_text": ("4",), "pages_mostly_pictures": ("3",)}
    with pytest.raises(InvalidRequest, match="OCR"):
        read([], [], pictures=(0, 1))


def test_text_without_unicode_is_not_stored_as_text() -> None:
    with pytest.raises(InvalidRequest, match="do not say which characters"):
        read(column(60, LEFT), unicode=False)


def test_encrypted_files_that_need_no_password_and_one_that_does() -> None:
    for content in (AES_128, AES_256):
        assert document.parse(content, BOUNDS).text == "The reserve is 88 crowns."
    with pytest.raises(InvalidRequest, match="remove the password"):
        document.parse(LOCKED, BOUNDS)


@pytest.mark.parametrize(
    ("title", "kept"),
    [("Microsoft Word - Rules of the harbour.docx", "Rules of the harbour"), ("untitled", ""),
     ("PowerPoint Presentation", ""), ("Document1", ""), ("Slide 1", ""), ("Word Document", ""),
     ("Harbour rules", "Harbour rules")],
)  # fmt: skip
def test_titles_that_programs_write(title: str, kept: str) -> None:
    assert read(column(60, LEFT), title=title).title == kept


def test_terms_stay_beside_what_they_mean() -> None:
    """Each of the terms has three words, and they fill their column."""
    terms = ["Page up or b", "Page down or f", "Home or less"]
    meanings = ["scroll backward one screenful", "scroll forward one screenful", "go to the begin"]
    rows = zip(column(72, terms), column(200, meanings), strict=True)
    found = read([drawn for row in rows for drawn in row]).text
    assert found.splitlines()[0] == "Page up or b scroll backward one screenful"


@pytest.mark.parametrize(("turn", "along", "down"), [(1, (0, 1), (1, 0)), (3, (0, -1), (-1, 0))])
def test_a_page_that_is_turned_to_be_read(
    turn: int, along: tuple[int, int], down: tuple[int, int]
) -> None:
    """Wide tables are written along the long side of the page."""
    cells = [["Valve", "Burst pressure", "Owner"], ["V-7", "16 bar", "Quastel"]]
    drawn = [
        Drawn(300 + 150 * c * along[0] + 13 * r * down[0],
              400 + 150 * c * along[1] + 13 * r * down[1], text, turn=turn)
        for r, row in enumerate(cells) for c, text in enumerate(row)
    ]  # fmt: skip
    assert read(drawn).text.split("\n") == ["Valve Burst pressure Owner", "V-7 16 bar Quastel"]


def test_blank_pages_are_not_called_scans() -> None:
    with pytest.raises(InvalidRequest, match="there is nothing on its pages"):
        read([], [])


def test_pages_that_look_alike_keep_what_is_their_own() -> None:
    """Forms of three lines have no header, and an invoice's number is not its page's."""
    forms = [
        column(60, [f"Report of day {n}", f"The water is {3 * n} cm.", "All is well."])
        for n in range(1, 6)
    ]
    text = document.parse(draw_pdf(forms), BOUNDS).text
    assert [f"Report of day {n}" in text for n in range(1, 6)] == [True] * 5
    assert text.count("cm.") == text.count("All is well.") == 5
    invoices = [
        [
            Drawn(60, 780, f"Invoice {4000 + 7 * n}"),
            *column(60, [f"Item {n}{k} of the order." for k in "abcde"]),
            Drawn(60, 40, f"Harbour office, page {n}"),
        ]
        for n in range(1, 6)
    ]
    text = document.parse(draw_pdf(invoices), BOUNDS).text
    assert [f"Invoice {4000 + 7 * n}" in text for n in range(1, 6)] == [True] * 5
    assert text.count("Harbour office") == 1


def test_hyphens_of_compounds_stay_where_a_line_ends() -> None:
    lines = [
        "A state-of-the-",
        "art kettle, an E-Mail-Adres-",
        "se and Anne-",
        "Marie at 20-",
        "30.",
    ]
    text = document.parse(draw_pdf([column(60, lines)]), BOUNDS).text
    assert " ".join(text.split()) == (
        "A state-of-the-art kettle, an E-Mail-Adresse and Anne-Marie at 20-30."
    )


def test_a_table_of_wordy_cells_is_read_by_rows() -> None:
    cells = [
        ("Product", "Warranty in years", "Price"),
        ("Kettle of steel", "two years from sale", "20"),
        ("Toaster with a lid", "one year from sale", "35"),
        ("Urn for forty cups", "five years from sale", "99"),
    ]
    drawn = [
        Drawn(x, 700 - 16 * number, cell)
        for number, row in enumerate(cells)
        for x, cell in zip((50, 220, 420), row, strict=True)
    ]
    text = document.parse(draw_pdf([drawn]), BOUNDS).text
    assert text.split("\n") == [" ".join(row) for row in cells]
    # Three columns of prose beside one another are columns all the same.
    beside = [
        f"{name} {word} waits at the weir"
        for word in ("alpha", "beta", "gamma")
        for name in ("left", "mid", "right")
    ]
    drawn = [Drawn(40 + 180 * (n % 3), 700 - 14 * (n // 3), t, 9) for n, t in enumerate(beside)]
    assert document.parse(draw_pdf([drawn]), BOUNDS).text.split("\n") == [
        beside[n] for start in range(3) for n in range(start, 9, 3)
    ]
