"""CSV and TSV files."""

import csv
import re
from dataclasses import replace
from io import StringIO

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder
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
    try:
        rows = csv.reader(StringIO(text, newline=""), delimiter=delimiter or _delimiter(text))
        add_rows(out, rows, delimited=True)
    except csv.Error as error:
        raise InvalidRequest(f"it is not a readable table: {error}") from error
    return replace(out.finish(), warnings=decoded.warnings)


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
