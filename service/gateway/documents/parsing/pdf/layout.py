"""Words of a page to lines in reading order: rows, and columns that stand side by side.

The order in which a page draws its words is kept where nothing speaks against it.
"""

import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvstitch.service.gateway.documents.parsing.pdf.words import Word

MIN_COLUMN_ROWS = 3
MIN_COLUMN_CHARS = 14  # of a line; one of Chinese or Japanese counts as two
_CJK = "\u2e80-\u2fdf\u3005-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
IS_CJK = re.compile(f"[{_CJK}\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3040-\u30ff\uff66-\uff9f\\s]+")


@dataclass(slots=True)
class Segment:
    """Words of one row without a large gap between them."""

    words: list[Word]

    @property
    def x0(self) -> float:
        return min(word.x0 for word in self.words)

    @property
    def x1(self) -> float:
        return max(word.x1 for word in self.words)

    @property
    def text(self) -> str:
        out = ""
        before: Word | None = None
        for word in self.words:
            if before is not None and (word.apart or word.breaks) and not _touch(before, word):
                out += " "
            out += word.text
            before = word
        return out


@dataclass(slots=True)
class Row:
    """What stands at one height."""

    segments: list[Segment]
    y0: float
    y1: float

    @property
    def height(self) -> float:
        return self.y1 - self.y0

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2

    @property
    def x0(self) -> float:
        return min(segment.x0 for segment in self.segments)

    @property
    def x1(self) -> float:
        return max(segment.x1 for segment in self.segments)

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments)


@dataclass(slots=True)
class Line:
    """A line of text in reading order."""

    text: str
    row: Row
    full: bool
    gap: bool


def lines_of(words: Sequence[Word], entries: Sequence[Word] = ()) -> tuple[list[Line], int]:
    """Return a page's lines, and how many readings (furigana) were left out."""
    rows, readings = _without_readings(_rows(words))
    for entry in entries:
        _enter(rows, entry)
    lines: list[Line] = []
    for group in _in_reading_order(rows):
        lines += _lines(group)
    return lines, readings


def beside(runs: Sequence[Sequence[Word]], lines: Sequence[Line]) -> list[Line]:
    """Return the lines of words that are turned otherwise than the page's; they take a place in its
    middle, as they are neither its header nor its footer."""
    found = [line for run in runs for line in lines_of(run)[0]]
    middle = statistics.median(line.row.middle for line in lines) if lines else 0.0
    for line in found:
        half = line.row.height / 2
        line.row.y0, line.row.y1 = middle - half, middle + half
    return found


def _rows(words: Sequence[Word]) -> list[Row]:
    rows: list[Row] = []
    for word in words:
        row = rows[-1] if rows else None
        if row is not None and _same_height(row, word, 0.4 if word.breaks else 0.6):
            _add(row, word)
        else:
            rows.append(Row([Segment([word])], word.y0, word.y1))
    return rows


def _same_height(row: Row, other: Word | Row, share: float) -> bool:
    return abs(row.middle - other.middle) <= share * max(row.height, other.height)


def _add(row: Row, word: Word) -> None:
    last = row.segments[-1].words[-1]
    gap = max(word.x0 - last.x1, last.x0 - word.x1)
    if gap > max(row.height, word.height):
        row.segments.append(Segment([word]))
    else:
        row.segments[-1].words.append(word)
    if word.height > row.height:
        row.y0, row.y1 = word.y0, word.y1


def _touch(before: Word, word: Word) -> bool:
    """Return whether two words are one text of a script without spaces."""
    if not (IS_CJK.match(before.text[-1]) and IS_CJK.match(word.text[0])):
        return False
    return word.x0 - before.x1 < 0.3 * max(before.height, word.height)


def _without_readings(rows: list[Row]) -> tuple[list[Row], int]:
    """Leave out small kana right above larger text, and put together the rows that they divided."""
    kept: list[Row] = []
    left_out = 0
    for index, row in enumerate(rows):
        if _KANA.fullmatch(row.text) and any(
            _is_above(row, other) for other in rows[max(0, index - 40) : index + 40]
        ):
            left_out += 1
        elif kept and left_out and _same_height(kept[-1], row, 0.2):
            for segment in row.segments:
                for word in segment.words:
                    _add(kept[-1], word)
        else:
            kept.append(row)
    return kept, left_out


def _is_above(small: Row, row: Row) -> bool:
    return (
        row.height >= 1.5 * small.height
        and abs(small.y0 - row.y1) < 0.6 * row.height
        and small.x0 < row.x1
        and row.x0 < small.x1
    )


def _enter(rows: list[Row], entry: Word) -> None:
    """Put an entry into the row at its height, else between the rows above and below."""
    beside = [row for row in rows if entry.y0 - 2 <= row.middle <= entry.y1 + 2]
    if beside:
        row = min(beside, key=lambda row: abs(row.middle - entry.middle))
        row.segments.append(Segment([entry]))
        row.segments.sort(key=lambda segment: segment.x0)
        return
    below = next((i for i, row in enumerate(rows) if row.middle < entry.middle), len(rows))
    rows.insert(below, Row([Segment([entry])], entry.y0, entry.y1))


def _in_reading_order(rows: list[Row]) -> list[list[Row]]:
    """Return groups of rows; columns that are drawn side by side are a group each."""
    groups: list[list[Row]] = []
    rest: list[Row] = []
    start = 0
    while start < len(rows):
        end, gutter = _columns_from(rows, start)
        if not end:
            rest.append(rows[start])
            start += 1
            continue
        first, second = _divide(rows[start:end], gutter)
        if _mostly_from_right(first + second):
            first, second = second, first
        groups += [rest, *_in_reading_order(first), *_in_reading_order(second)]
        rest, start = [], end
    return [group for group in (*groups, rest) if group]


def _columns_from(rows: list[Row], start: int) -> tuple[int, float]:
    """Return the row behind the last that a gutter divides, and its place; (0, 0): none."""
    best = (0, 0.0)
    segments = sorted(rows[start].segments, key=lambda segment: segment.x0)
    for left, right in pairwise(segments):
        low, high = left.x1, right.x0
        end = start
        for end in range(start, len(rows) + 1):
            if end == len(rows) or (end > start and rows[end].middle >= rows[end - 1].middle):
                break
            sides = [(s.x0, s.x1) for s in rows[end].segments]
            narrower = _narrowed(low, high, sides, 0.8 * rows[end].height)
            if narrower is None:
                break
            low, high = narrower
        middle = (low + high) / 2
        for below in range(start + 1, end):  # where both columns have ended
            alone = all(len(row.segments) == 1 for row in rows[below:end])
            if alone and rows[below - 1].middle - rows[below].middle > 1.5 * rows[below].height:
                end = below
                break
        if end > best[0] and all(map(_is_prose, _divide(rows[start:end], middle))):
            best = end, middle
    return best


def _narrowed(
    low: float, high: float, sides: list[tuple[float, float]], least: float
) -> tuple[float, float] | None:
    """Return what is left of a gutter beside a row's segments; None if one crosses it."""
    for x0, x1 in sides:
        if x1 <= high - least and (x0 + x1) / 2 < (low + high) / 2:
            low = max(low, x1)
        elif x0 >= low + least:
            high = min(high, x0)
        else:
            return None
    return (low, high) if high - low >= least else None


def _divide(rows: Sequence[Row], gutter: float) -> tuple[list[Row], list[Row]]:
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        for side, right in zip(sides, (False, True), strict=True):
            if own := [s for s in row.segments if (s.x0 > gutter) is right]:
                side.append(Row(own, row.y0, row.y1))
    return sides


def _is_prose(rows: Sequence[Row]) -> bool:
    """Return whether a column holds running text, and no cells of a table."""
    if len(rows) < MIN_COLUMN_ROWS:
        return False
    texts = [row.text for row in rows]
    if statistics.median(len(t.split()) + len(IS_CJK.findall(t)) / 2 for t in texts) < 3:
        return False
    several = sum(len(row.segments) > 1 for row in rows)
    if 2 * several > len(rows) and not _columns_from(list(rows), 0)[0]:
        return False  # cells stand in it
    if statistics.median(len(t) + len(IS_CJK.findall(t)) for t in texts) < MIN_COLUMN_CHARS:
        return False  # keys, terms or options, each beside what it means
    letters = sum(sum(map(str.isalpha, text)) for text in texts)
    if letters < 0.6 * sum(len("".join(text.split())) for text in texts):
        return False
    width = max(row.x1 for row in rows) - min(row.x0 for row in rows)
    return sum(row.x1 - row.x0 for row in rows) >= 0.7 * width * len(rows)


def _mostly_from_right(rows: Sequence[Row]) -> bool:
    letters = [unicodedata.bidirectional(c) for row in rows[:20] for c in row.text if c.isalpha()]
    return sum(kind in ("R", "AL") for kind in letters) * 2 > len(letters)


def _lines(rows: Sequence[Row]) -> list[Line]:
    right = max(row.x1 for row in rows)
    steps = [a.middle - b.middle for a, b in pairwise(rows)]
    usual = statistics.median([step for step in steps if step > 0] or [0.0])
    lines = []
    for index, row in enumerate(rows):
        step = steps[index - 1] if index else 0.0
        gap = step < 0 or step > 1.4 * max(usual, row.height)
        lines.append(Line(row.text, row, row.x1 > right - 1.5 * row.height, gap))
    return lines
