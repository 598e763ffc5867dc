"""reStructuredText, whose tables become lines that name their columns, and AsciiDoc."""

from __future__ import annotations

import pytest

from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch_formats.texts import parse_asciidoc, parse_rst

BOUNDS = Bounds(10, 10_000)
GRID = """\
+----------+------------------+
| Product  | Price            |
|          | in euros         |
+==========+==================+
| Kettle   | 20               |
|          |                  |
|          | * steel: 25      |
|          | * glass: 30      |
+----------+------------------+
| Toaster  | 35               |
+          +------------------+
|          | 40 with a lid    |
+----------+------------------+
"""
GRID_ROWS = [
    "Product: Kettle | Price in euros: 20; steel: 25; glass: 30",
    "Product: Toaster | Price in euros: 35",
    "Product: Toaster | Price in euros: 40 with a lid",
]
SIMPLE = """\
======  =====  ========
Product        Warranty
-------------  --------
Kind    Size   Years
======  =====  ========
Kettle  small  2
Urn     large  3, with
               a receipt
======  =====  ========
"""
LIST = """\
.. list-table:: Birds of Lorvik
   :header-rows: 1

   * - Bird
     - Place
   * - Heron
     - ``weir``
   * - Coot
     -
"""
CSV = """\
.. csv-table:: Prices
   :header: "Product", "Price"

   "Kettle, small", 20
   Urn, 60
"""


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (GRID, GRID_ROWS),
        (
            SIMPLE,
            [
                "Product Kind: Kettle | Product Size: small | Warranty Years: 2",
                "Product Kind: Urn | Product Size: large | Warranty Years: 3, with a receipt",
            ],
        ),
        (LIST, ["Birds of Lorvik", "Bird: Heron | Place: weir", "Bird: Coot"]),
        (CSV, ["Prices", "Product: Kettle, small | Price: 20", "Product: Urn | Price: 60"]),
    ],
    ids=["grid", "simple", "list", "csv"],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_name_their_columns(table: str, rows: list[str], end: str) -> None:
    text = f"Manual\n======\n\nBefore.\n\n{table}\nParts\n-----\n\nAfter.\n"
    parsed = parse_rst(text.replace("\n", end).encode(), BOUNDS)
    lines = parsed.text.splitlines()
    assert lines[:5] == ["Manual", "======", "", "Before.", ""]
    assert lines[5 : 5 + len(rows)] == rows
    assert lines[5 + len(rows) :] == ["", "Parts", "-----", "", "After."]
    assert [(mark[2], parsed.text[mark[0] :][:5]) for mark in parsed.marks] == [
        ("Manual", "Manua"),
        ("Parts", "Parts"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Drawn::\n\n" + "".join(f"   {line}\n" for line in GRID.splitlines()),
        GRID.replace("| Kettle   | 20 ", "| Kettles of steel | 20 "),  # a broken one
        "=====\nTitle\n=====\n\nText.",
        "===  ===\nnever ended",
        ".. csv-table::\n   :file: /etc/passwd\n",
    ],
    ids=["code", "broken", "title", "open", "file"],
)
def test_what_is_no_table_stays_as_it_is(text: str) -> None:
    assert parse_rst(text.encode(), BOUNDS).text == text


def test_rst() -> None:
    text = "=====\nTitle\n=====\n\nTitle\n\n.. include:: /etc/passwd\n\n"
    text += "Part :ref:`x`\n-------------\n\nx\n"
    found = parse_rst(text.encode(), BOUNDS)
    assert found.text == text and found.title == "Title"
    assert [(label, text[at:][:5]) for at, _, label in found.marks] == [
        ("Title", "Title"), ("Part :ref:`x`", "Part "),
    ]  # fmt: skip


def test_asciidoc() -> None:
    """Headings of both forms; lines in blocks of code, examples, comments and tables are none."""
    text = (
        "= The Manual\nAda <ada@example.org>\n:toc:\n\n== Parts\n\n----\n== no heading\n----\n\n"
        "=== Screws\n\n====\n== nor this\n====\n\n|===\n|Part |Price\n\n|lid |2\n|===\n\n"
        "Care\n----\n\nDry it.\n\n////\n== hidden\n////\n\nCleaning it\n~~~~~~~~~~~\n\n.A title\n"
        "--------\n== code\n--------\n\n```sh\n== x\n```\n\n== End\n"
    )
    found = parse_asciidoc(text.encode(), BOUNDS)
    assert found.text == text and found.title == "The Manual"
    labels = ["The Manual", "Parts", "Screws", "Care", "Cleaning it", "End"]
    assert [label for _, _, label in found.marks] == labels
    assert all(text[at:].split("\n")[0].strip("= ") == label for at, _, label in found.marks)
