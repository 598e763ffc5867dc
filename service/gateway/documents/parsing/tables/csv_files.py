"""CSV and TSV files."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    ParsedFile,
    TextBuilder,
    places_warning,
)
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

DELIMITERS = ",;\t|"
SAMPLE_LINES = 20
_COMMA_BETWEEN_CELLS = re.compile(r"(?<!\d),|,(?!\d)")  # others may be of decimal numbers
MAX_FIELD_CHARS = 1 << 20
# Excel's own line that says what separates cells.
_SEPARATOR_LINE = re.compile(r'\s*"?sep=(?P<separator>.)"?[ \t,;]*(?:\r\n|\r|\n|\Z)', re.I)


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a table; its delimiter is the one that cuts its first lines most evenly."""
    decoded = decode(content)
    text = decoded.text
    csv.field_size_limit(MAX_FIELD_CHARS)
    out = TextBuilder(bounds)
    said = _SEPARATOR_LINE.match(text)
    delimiter = said["separator"] if said else ""
    text = text[said.end() :] if said else text
    unclosed: list[int] = []
    try:
        rows = _rows(list(StringIO(text, newline="")), delimiter or _delimiter(text), unclosed)
        add_rows(out, rows, delimited=True)
    except csv.Error as error:
        raise InvalidRequest(f"it is not a readable table: {error}") from error
    warnings = [*decoded.warnings]
    if unclosed:
        message = "quotation marks of lines {places} are not closed: they were read as characters"
        places = [str(number + bool(said)) for number in unclosed]
        warnings.append(places_warning("unclosed_quotes", message, places))
    return replace(out.finish(), warnings=tuple(warnings))


def _rows(lines: list[str], delimiter: str, unclosed: list[int]) -> Iterator[list[str]]:
    """Yield rows. A quotation mark that nothing closes, or only the one of another row, is a
    character of its line, whose number is added to `unclosed`."""
    make = partial(csv.reader, delimiter=delimiter)
    start, width = 0, len(next(make(lines), []))
    while start < len(lines):
        strict, begun = make((lines[n] for n in range(start, len(lines))), strict=True), 0
        try:
            for row in strict:
                yield row
                begun = strict.line_num
            return
        except csv.Error as error:
            if "field larger" in str(error):
                raise
            open_end, many = "unexpected end" in str(error), strict.line_num - begun > 1
        start += begun
        bare = next(make(lines[start : start + 1], quoting=csv.QUOTE_NONE))
        following = next(make(lines[start + 1 : start + 2]), [])
        if open_end or (many and len(bare) == len(following) == width):
            start += 1
            unclosed.append(start)
            yield bare
        else:
            lenient = make(lines[n] for n in range(start, len(lines)))
            yield next(lenient)
            start += lenient.line_num


def _delimiter(text: str) -> str:
    """Return the delimiter with the most columns, if all first lines have as many. Commas that
    all stand in numbers give way to any other."""
    lines = [line for line in text[:65_536].splitlines()[:SAMPLE_LINES] if line.strip()]

    in_numbers = not any(map(_COMMA_BETWEEN_CELLS.search, lines))

    def columns(delimiter: str) -> tuple[bool, int, int, bool]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        most = max(widths, default=0)
        even = widths.count(most) if most > 1 else 0
        gives_way = in_numbers and delimiter == ","
        return even == len(lines) and not gives_way, even, most, even > 0 and delimiter == ";"

    return max(DELIMITERS, key=columns)
