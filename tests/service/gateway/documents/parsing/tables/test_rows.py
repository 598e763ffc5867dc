"""The table model: which rows name the columns, and that no value stands under a wrong name."""

from __future__ import annotations

import pytest

from kvstitch.service.gateway.documents.parsing.markup import html, text_files
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, TextBuilder
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows


def written(
    *rows: list[Cell | str], headers: int | None = None, delimited: bool = False
) -> list[str]:
    out = TextBuilder(Bounds(10, 100_000))
    add_rows(out, rows, headers=headers, delimited=delimited)
    return out.finish().text.splitlines()


def cut(text: str) -> list[list[Cell | str]]:
    return [list(line.split(",")) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("Isle,Goats,Sheep\nVik,3,9", ["Isle: Vik | Goats: 3 | Sheep: 9"]),
        ("Stop,2023,2024\nQuay,7,8", ["Stop: Quay | 2023: 7 | 2024: 8"]),
        (",2023-Q1,2023-Q2\nQuay,7,8", ["Quay | 2023-Q1: 7 | 2023-Q2: 8"]),
        ("Steel,10 mm,20 mm,30 mm\nplain,4.5,9,13",
         ["Steel: plain | 10 mm: 4.5 | 20 mm: 9 | 30 mm: 13"]),
        ("CO2,PM2.5,H1N1\n400,12,0", ["CO2: 400 | PM2.5: 12 | H1N1: 0"]),
        ("Tel.,Fax,Tel.\n5-1,5-2,5-3", ["Tel.: 5-1 | Fax: 5-2 | Tel.: 5-3"]),
        # Titles, notes and properties above the header.
        (
            "Tides of May\nDrawn up by,Quastel\n\nDay,High,Low,Wind\nMon,3.1,0.2,N\nTue,3.0,0.3,E",
            ["Tides of May", "Drawn up by | Quastel",
             "Day: Mon | High: 3.1 | Low: 0.2 | Wind: N",
             "Day: Tue | High: 3.0 | Low: 0.3 | Wind: E"],
        ),
        # The header once more, a blank line, a line of one cell, the sum.
        (
            "Part,Price,Stock\nlid,2,5\nPart,Price,Stock\n\nSpare parts,,\nknob,1,6\nTotal,3,11",
            ["Part: lid | Price: 2 | Stock: 5", "Spare parts", "Part: knob | Price: 1 | Stock: 6",
             "Part: Total | Price: 3 | Stock: 11"],
        ),
        # Another table below.
        (
            "Part,Price\nlid,2\n\nIsle,Goats\nVik,3",
            ["Part: lid | Price: 2", "Isle: Vik | Goats: 3"],
        ),
        # No header: rows of data, properties.
        ("Vik,2024-03-05,open\nNord,2024-04-01,shut",
         ["Vik | 2024-03-05 | open", "Nord | 2024-04-01 | shut"]),
        ("AB-12,lid,blue\nAB-77,knob,red", ["AB-12 | lid | blue", "AB-77 | knob | red"]),
        ("Vik,Nord,blue\nSund,Nord,red", ["Vik | Nord | blue", "Sund | Nord | red"]),
        ("a@b.org,lid,blue\nc@d.org,knob,red", ["a@b.org | lid | blue", "c@d.org | knob | red"]),
        ("Name:,Quastel\nBorn:,1971\nTown:,Vik", ["Name: Quastel", "Born: 1971", "Town: Vik"]),
        ("Author,Quastel\nTown,Vik\nYear,1971", ["Author | Quastel", "Town | Vik", "Year | 1971"]),
        ("Name,Quastel,Phone,5-1\nTown,Vik,Age,44",
         ["Name | Quastel | Phone | 5-1", "Town | Vik | Age | 44"]),
    ],
)  # fmt: skip
def test_which_row_names_the_columns(table: str, lines: list[str]) -> None:
    assert written(*cut(table)) == lines


def test_rows_whose_cells_are_shifted_have_no_names() -> None:
    rows = cut("Part,Price,Stock\nlid,2,50,5\nknob,1,6")
    assert written(*rows, delimited=True) == [
        "lid | 2 | 50 | 5", "Part: knob | Price: 1 | Stock: 6",
    ]  # fmt: skip
    assert written(*cut("Setting,Value\nport,8080\nhost,vik.example"), delimited=True) == [
        "Setting: port | Value: 8080", "Setting: host | Value: vik.example",
    ]  # fmt: skip


def test_cells_that_span() -> None:
    assert written(
        ["Isle", Cell("2023", columns=2), Cell("2024", columns=2)],
        ["", "Goats", "Sheep", "Goats", "Sheep"],
        [Cell("Vik", rows=2), "1", "2", "3", "4"],
        ["5", "6", Cell("not counted", columns=2)],
        [Cell("All islands are counted in May", columns=5)],
    ) == [
        "Isle: Vik | 2023 Goats: 1 | 2023 Sheep: 2 | 2024 Goats: 3 | 2024 Sheep: 4",
        "Isle: Vik | 2023 Goats: 5 | 2023 Sheep: 6 | 2024 Goats, 2024 Sheep: not counted",
        "All islands are counted in May",
    ]
    assert written(
        [Cell("Isle", rows=2), Cell("Animals", columns=2)], ["Goats", "Sheep"], ["Vik", "1", "2"],
    ) == ["Isle: Vik | Animals Goats: 1 | Animals Sheep: 2"]  # fmt: skip
    # A cell that covers more rows or columns than there are, and two that claim one place.
    assert written(["a", Cell("b", rows=9)], [Cell("c", columns=9)], ["d"], headers=0) == [
        "a | b", "c | b", "d | b",
    ]  # fmt: skip


def test_groups_without_merged_cells() -> None:
    rows = cut(",2023,,2024,\nIsle,Goats,Sheep,Goats,Sheep\nVik,1,2,3,4")
    assert written(*rows) == [
        "Isle: Vik | 2023 Goats: 1 | 2023 Sheep: 2 | 2024 Goats: 3 | 2024 Sheep: 4"
    ]


def test_what_the_file_says_of_its_header_comes_first() -> None:
    rows = cut("2,3\n5,7\n\n11,13")
    assert written(*rows, headers=1) == ["2: 5 | 3: 7", "2: 11 | 3: 13"]
    assert written(*cut("Isle,Goats\nVik,3"), headers=0) == ["Isle | Goats", "Vik | 3"]


BOUNDS = Bounds(10, 100_000)


def page(body: str) -> list[str]:
    return html.parse(f"<html><body>{body}</body></html>".encode(), BOUNDS).text.splitlines()


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        # Paragraphs, breaks, lists, and tables within cells.
        (
            "<tr><th><p>Isle</p></th><th>Port<br>of call</th></tr>"
            "<tr><td><div>Vik</div><div>north</div></td><td><ul><li>Quay</li><li>Pier</li></ul></td></tr>"
            "<tr><td>Sund</td><td><table><tr><td>a</td><td>b</td></tr></table></td></tr>",
            ["Isle: Vik north | Port of call: Quay; Pier", "Isle: Sund | Port of call: a b"],
        ),
        # Two rows of names, and a title across all columns.
        (
            "<caption>Counts</caption><thead><tr><th colspan=3>All isles</th></tr>"
            "<tr><th rowspan=2>Isle<th colspan=2>2024</tr><tr><th>Goats<th>Sheep</tr></thead>"
            "<tr><td rowspan=2>Vik<td>1<td>2</tr><tr><td>3<td>4</tr>",
            ["Counts", "All isles", "Isle: Vik | 2024 Goats: 1 | 2024 Sheep: 2",
             "Isle: Vik | 2024 Goats: 3 | 2024 Sheep: 4"],
        ),
        # Names of rows.
        (
            "<tr><td></td><th>Goats</th><th>Sheep</th></tr><tr><th>Vik</th><td>1</td><td>2</td></tr>",
            ["Vik | Goats: 1 | Sheep: 2"],
        ),
        ("<tr><th>Name</th><td>Quastel</td></tr><tr><th>Born:</th><td>1971</td></tr>",
         ["Name: Quastel", "Born: 1971"]),
        # Without a header: found out, or left.
        ("<tr><td>Isle<td>Goats<tr><td>Vik<td>3", ["Isle: Vik | Goats: 3"]),
        ("<tr><td>Author<td>Quastel<tr><td>Town<td>Vik", ["Author | Quastel", "Town | Vik"]),
        # What only lays out.
        ("<tr><td><h2>News</h2><p>One.</p><p>Two.</p></td><td>Menu</td></tr>",
         ["## News", "One.", "Two.", "Menu"]),
        ("<tr><td><table><tr><th>a<th>b<tr><td>1<td>2</table></td><td>x</td></tr>",
         ["a: 1 | b: 2", "x"]),
    ],
)  # fmt: skip
def test_tables_of_pages(table: str, lines: list[str]) -> None:
    assert page(f"<p>before</p><table>{table}</table><p>after</p>") == ["before", *lines, "after"]


def test_tables_of_markdown() -> None:
    text = (
        "# Isles\n\n| Isle | Ports |\n|:--|--:|\n| Vik | a\\|b<br>c |\n| **Sund** | |\n\nafter\n\n"
        "```\n| no | table |\n|---|---|\n```\n\n## More\n\n"
        "<table><tr><th>x</th><th>y</th></tr>\n<tr><td>1</td><td>2</td></tr></table>\n\nend\n"
    )
    found = text_files.parse_markdown(text.encode(), BOUNDS)
    assert found.text == (
        "# Isles\n\nIsle: Vik | Ports: a|b c\nIsle: **Sund**\n\nafter\n\n"
        "```\n| no | table |\n|---|---|\n```\n\n## More\n\nx: 1 | y: 2\n\nend\n"
    )
    assert [found.text[m[0] :].split("\n")[0] for m in found.marks] == ["# Isles", "## More"]
