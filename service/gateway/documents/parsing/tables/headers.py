"""Finds the rows of a table that name its columns, where the file does not say which they are.

    Sales of the harbour shop                  a title: fewer cells than the rows below
            | 2023  |       | 2024  |          groups of names
    Region  | Units | Price | Units | Price    the names
    North   | 12    | 3.50  | 14    | 3.75     the first row

What speaks for names: they are words, and stand above numbers or dates. What speaks against: they
look like what stands below them, or come again there. Where both are silent, as in a table of words
only, three or more are taken for names; two are not, because a list of properties looks the same
(Author | Quastel).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from kvstitch.service.gateway.documents.parsing.tables.grid import Cell, Row, distinct

Kind = Literal["word", "period", "amount", "data"]

MAX_NAME_CHARS = 100
MAX_SENTENCE_CHARS = 30  # what is longer and ends in a full stop is no name
MAX_ABOVE = 20  # rows of titles and notes above a header
MAX_GROUPS = 3  # rows of groups above the names
_AMOUNT = re.compile(
    r"[-+−(~<>≈±]*\s?(?:[A-Z]{3}\s|[$€£¥₹₽]\s?)?\d[\d.,'’\s\u00a0\u202f/:×x-]*"
    r"(?P<unit>\s?(?:%|‰|[$€£¥₹₽]|°?[^\W\d_]{1,4}[²³]?(?:/[^\W\d_]{1,3}[²³]?)?))?\)?"
)
_PERIOD = re.compile(
    r"(?:19|20|21)\d\d(?:\s?[-/.]\s?(?:Q[1-4]|H[12]|W\d\d?|\d{1,4}))?(?:[-/.][0-3]?\d)?"
    r"|[0-3]?\d[-/.][01]?\d[-/.](?:\d\d){1,2}|[01]?\d[-/.](?:19|20)\d\d",
    re.I,
)
_DATA = re.compile(r"\S+@\S+\.\S+|\w+://\S*|www\.\S+|true|false|yes|no|n/a|[-–—.]+", re.I)
_DIGIT = re.compile(r"\d")
_RUN = re.compile(r"(\d+)|([^\W\d_]+)")


def find_header(
    rows: Sequence[Row], *, trusted: bool = False, pairs: bool = False
) -> tuple[int, int] | None:
    """Return (first row, number of rows) of the header; None: no row is surely one."""
    counts = [len(distinct(row)) for row in rows]
    wide = [count for count in counts if count > 2]
    usual = Counter(wide if len(wide) > 1 else counts)
    typical = max(usual, key=lambda count: (usual[count], count), default=0)
    for at, row in enumerate(rows[:MAX_ABOVE]):
        stub = not row[0].text  # nothing stands above the names of rows
        if counts[at] < 2 or counts[at] < typical - stub:
            continue
        if names_columns(row, rows[at + 1 :], trusted=trusted, pairs=pairs):
            first = _with_groups(rows, at)
            return first, at + 1 - first
        break
    # Columns of notes may have no name.
    nearly = bool(rows) and counts[0] > 1 and counts[0] >= 0.7 * typical
    nearly = nearly and names_columns(rows[0], rows[1:], trusted=trusted, pairs=pairs)
    return (0, 1) if nearly else None


def _with_groups(rows: Sequence[Row], at: int) -> int:
    """Return the first row of the header whose last row is `at`."""
    names = [cell.text for cell in distinct(rows[at])]
    repeated = len(set(names)) < len(names)
    first = at
    while first and at - first < MAX_GROUPS:
        above = rows[first - 1]
        groups = distinct(above)
        title = len(groups) == 1 and (groups[0].columns == 1 or groups[0].columns >= len(above))
        merged = any(cell.columns > 1 or cell.rows > 1 for cell in groups)
        if title or not (merged or repeated) or any(kind(g.text) == "amount" for g in groups):
            break
        first -= 1
    return first


def names_columns(
    row: Row, below: Sequence[Row], *, trusted: bool = False, pairs: bool = False
) -> bool:
    """Return whether a row holds the names of columns, by what stands below it."""
    cells = distinct(row)
    if len({cell.text for cell in cells}) < 2 or not _may_be_names(row, cells):
        return False
    if below and any(cell.text and cell is b for cell, b in zip(row, below[0], strict=False)):
        return False  # a cell that goes on below is a value of several rows
    texts = [cell.text for cell in row]
    # Neither the header again, nor notes across all columns.
    below = [o for o in below if [cell.text for cell in o] != texts and len(distinct(o)) > 1]
    contrast = False
    for name in cells:
        column = [text for other in below if (text := _value_below(row, other, name))]
        if not column:
            continue
        own = kind(name.text)
        kinds = Counter(map(kind, column))
        most, count = kinds.most_common(1)[0]
        both_properties = name.text.endswith(":") and any(text.endswith(":") for text in column)
        alike = own == "word" and _DIGIT.search(name.text) is not None
        alike = alike and _shape(name.text) in map(_shape, column)
        if name.text in column or both_properties or alike or own == most == "period":
            return False
        contrast |= own in ("word", "period") and most != "word" and count >= 0.8 * len(column)
    if contrast or trusted:
        return True
    different = len({cell.text.casefold() for cell in cells}) == len(cells)
    words = all(kind(cell.text) == "word" for other in below for cell in distinct(other))
    return different and bool(below) and (len(cells) > 2 or (pairs and words))


def _may_be_names(row: Row, cells: Row) -> bool:
    """Return whether a row looks like names by itself: words, years, or numbers in order."""
    kinds = [kind(cell.text) for cell in cells]
    if "data" in kinds or (kinds.count("word") == 0 and row[0].text):
        return False
    amounts = [cell.text for cell, own in zip(cells, kinds, strict=True) if own == "amount"]
    if not amounts:
        return True
    if len(amounts) < 3:
        return False
    if all(text.isdecimal() for text in amounts):
        return all(int(b) - int(a) == 1 for a, b in pairwise(amounts))
    units = {found["unit"] for text in amounts if (found := _AMOUNT.fullmatch(text))}
    return len(units) == 1 and None not in units and len(set(amounts)) == len(amounts)


def _value_below(row: Row, other: Row, name: Cell) -> str:
    """Return what stands in another row below a name, where nothing is merged there."""
    both = zip(row, other, strict=False)
    return next((cell.text for own, cell in both if own is name and cell is not name), "")


def kind(text: str) -> Kind:
    """Return what a cell looks like: an amount, a date or year, something else that is no name
    (an address, yes or no, a sentence), or words."""
    text = text.strip("~")  # of what is struck through
    if _PERIOD.fullmatch(text):
        return "period"
    if _AMOUNT.fullmatch(text):
        return "amount"
    if _DATA.fullmatch(text) or len(text) > MAX_NAME_CHARS:
        return "data"
    if len(text) > MAX_SENTENCE_CHARS and text.endswith((".", "!", "。")):
        return "data"
    return "word"


def _shape(text: str) -> str:
    """Return a text with every run of digits as 9 and of letters as a: PPR-9087 is a-9."""
    return _RUN.sub(lambda run: "9" if run[1] else "a", text)


def column_names(header: Sequence[Row], width: int) -> list[str]:
    """Return the name of each column: its cells in the header from above, each once."""
    return [" ".join(_parts(header, column)) for column in range(width)]


def _parts(header: Sequence[Row], column: int) -> Iterator[str]:
    said: list[str] = []
    for number, row in enumerate(header):
        text = row[column].text if column < len(row) else ""
        if not text and number < len(header) - 1 and not any(c.columns > 1 for c in row):
            # Without merged cells a group stands above its first column only.
            text = next((cell.text for cell in reversed(row[:column]) if cell.text), "")
        if (text := text.removesuffix(":").strip()) and text not in said:
            said.append(text)
            yield text
