"""The text of a file with its marks, the same for every format, and how it is put together."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvstitch.service.errors import InvalidRequest

MarkKind = Literal["page", "slide", "sheet", "heading"]
Mark = tuple[int, MarkKind, str]
"""(first character, what begins there, its label): a DocumentMark on its way between processes."""

MAX_MARKS = 20_000  # of one file; those after them are left out
MAX_LABEL_CHARS = 200
SOFT_HYPHEN = "\u00ad"  # where a word may be divided; it is not seen where it is not
MAX_PLACES = 200  # that a warning names
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Bounds:
    pages: int
    chars: int
    ocr_pages: int = 0  # that are read by `picture_reader`
    picture_reader: str = ""  # "module:class", see pdf/words.py
    archives: Mapping[str, str] = field(default_factory=dict)  # parsers by FileFormat.part

    def check_pages(self, count: int, what: str) -> None:
        """Raise InvalidRequest if so many pages, or `what` they are called, are too many."""
        if count > self.pages:
            raise InvalidRequest(f"it has {count} {what}, the limit is {self.pages}: split it")

    def check_chars(self, count: int) -> None:
        """Raise InvalidRequest if so many characters of text are too many."""
        if count > self.chars:
            raise InvalidRequest(f"its text has more than {self.chars} characters: split it")


@dataclass(frozen=True)
class ParseWarning:
    """Something that is not in the text of a file, or may be wrong there, `count` times, in these
    places."""

    code: str
    message: str
    places: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class ParsedFile:
    text: str
    title: str = ""
    marks: list[Mark] = field(default_factory=list)
    warnings: tuple[ParseWarning, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)  # entries of its metadata


def heading(start: int, text: str) -> Mark:
    """Return the mark of a heading; its label is one line, and not too long."""
    label = _SPACE.sub(" ", text).strip()
    if len(label) > MAX_LABEL_CHARS:
        label = label[: MAX_LABEL_CHARS - 1] + "…"
    return start, "heading", label


def places_warning(code: str, message: str, places: Sequence[str]) -> ParseWarning:
    """Return a warning about places, each of which counts once."""
    said = message.format(places=_ranges(places))
    return ParseWarning(code, said, tuple(places[:MAX_PLACES]), len(places))


LEFT_OUT = {
    "pictures": "pictures are not read ({count}): what is written in them is missing",
    "embedded_objects": "embedded objects are not read ({count}): save them as files of their own",
    "quotes": "what replies quote below their text is left out",
    "controls": "labels of buttons are left out ({count})",
    "hidden_text": "hidden text is left out ({count} places)",
    "readings_left_out": "small readings above words (furigana) are left out ({count})",
}


def left_out_warnings(counts: Mapping[str, int]) -> list[ParseWarning]:
    """Return a warning for each kind of thing that is left out, with how many there are."""
    return [
        ParseWarning(code, message.format(count=counts[code]), count=counts[code])
        for code, message in LEFT_OUT.items()
        if counts.get(code)
    ]


def _ranges(places: Sequence[str], most: int = 8) -> str:
    """Return labels as people write them: 2-5, 9; numbers that follow one another are a range."""
    runs: list[list[str]] = []
    for place in places:
        last = runs[-1][-1] if runs else ""
        if place.isdecimal() and last.isdecimal() and int(place) == int(last) + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    said = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" and {len(said) - most} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more


_NO_TITLE = re.compile(
    r"(untitled|unbenannt|sans titre|ohne titel|(word|powerpoint|excel)[ -]?(document|presentation|"
    r"workbook|-dokument|-pr[aä]sentation)|(document|dokument|presentation|pr[aä]sentation|slide|"
    r"folie|book|mappe|workbook|title|titel)[ -]?\d*)",
    re.IGNORECASE,
)
_BY_PRINTER = re.compile(r"^Microsoft (Word|PowerPoint|Excel) - ")
_FILE_NAME = re.compile(r"\.(docx?|pptx?|xlsx?|odt|rtf|tex|dvi|indd|qxd|pub)$", re.IGNORECASE)


def meaningful_title(title: str) -> str:
    """Return a title from a file's properties, or "" if a program wrote it and no person."""
    found = _FILE_NAME.sub("", _BY_PRINTER.sub("", one_line(title)))
    return "" if _NO_TITLE.fullmatch(found) else found


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return _SPACE.sub(" ", text).strip()


_SMALL = re.compile(r"[-+−–]?\d+(?:[,–-]\s?\d+)*")
_BASE = re.compile(r"[^\W\d_]+$|\d[\d.,]*$|\)$")


def raised(before: str, text: str, behind: str = "", *, note: bool = False) -> str:
    """Return small raised digits so that they are no part of the number or word before them: 10^6,
    m^2, 250[9]; those of a fraction, 3 1/2; others as they are."""
    if not _SMALL.fullmatch(text) or (base := _BASE.search(before)) is None:
        return text
    if behind[:1] in ("/", "\u2044"):
        return f" {text}" if base[0][0].isdigit() else text
    power = base[0] == "10" or len(base[0]) < (2 if base[0][0].isdigit() else 3)
    return f"^{text}" if power and not note else f"[{text}]"


def lowered(before: str, text: str) -> str:
    """Return small lowered digits so that they are no part of the number before them."""
    return f"_{text}" if text[:1].isdigit() and before[-1:].isdigit() else text


def struck(text: str) -> str:
    """Return a text that is struck through with Markdown's signs."""
    inner = text.strip()
    return text.replace(inner, f"~~{inner}~~", 1) if inner else text


MAX_ADDRESS_CHARS = 200
_ADDRESS = re.compile(r"(?:https?|ftp)://[^\s<>\"]+|mailto:[^\s<>\"?]+", re.I)


class Addresses:
    """The addresses that links of a document lead to, each said once, behind the link's words."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def behind(self, text: str, address: str) -> str:
        """Return an address in brackets; "" for one that was said, or leads within the document."""
        shown = address = address.strip()
        if len(address) > MAX_ADDRESS_CHARS or address.startswith("mailto:"):
            # What follows the question mark of a long one tells who was sent it.
            shown = address.removeprefix("mailto:").partition("?")[0]
        known = shown in self._said or len(shown) > MAX_ADDRESS_CHARS
        if known or not _ADDRESS.match(address) or not text.strip():
            return ""
        self._said.add(shown)
        bare = re.sub(r"^\w+://|/$", "", shown)
        return "" if bare in text else f" ({shown})"


class TextBuilder:
    """Lines follow one another, blocks stand apart; headings are written as Markdown's, because
    models know these and the chunker cuts before them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._parts: list[str] = []
        self._marks: list[Mark] = []
        self._size = 0
        self._end = ""  # the last two characters

    def mark(self, kind: MarkKind, label: str) -> None:
        """Mark the beginning of a page, slide or sheet."""
        self._marks.append((self._size, kind, label))

    def heading(self, level: int, text: str) -> None:
        """Add a heading of level 1 to 6, unless it is blank."""
        if line := one_line(text.replace(SOFT_HYPHEN, "")):
            self.gap()
            self._marks.append(heading(self._size, line))
            self.add(f"{'#' * min(max(level, 1), 6)} {line}\n\n")

    def line(self, text: str) -> None:
        if text.strip():
            self.add(text + "\n")

    def gap(self) -> None:
        """Begin a new block with the next line."""
        if self._parts and self._end != "\n\n":
            self.add("\n" if self._end.endswith("\n") else "\n\n")

    def block(self, text: str) -> None:
        """Add a paragraph, unless it is blank."""
        if text := text.strip():
            self.gap()
            self.add(text + "\n\n")

    def file(self, other: ParsedFile) -> None:
        """Add another file's text as a block, with its marks; nothing if it has none."""
        if not other.text:
            return
        self.gap()
        self._marks += [(self._size + start, kind, label) for start, kind, label in other.marks]
        self.add(other.text + "\n\n")

    def finish(self, title: str = "", warnings: Iterable[ParseWarning] = ()) -> ParsedFile:
        text = "".join(self._parts).rstrip()
        return ParsedFile(text, one_line(title), self._marks, tuple(warnings))

    def add(self, text: str) -> None:
        """Add text that goes on where the last ended."""
        # XML and spreadsheets may name characters that are none.
        text = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        text = text.replace(SOFT_HYPHEN, "")
        self._parts.append(text)
        self._size += len(text)
        self._end = (self._end + text)[-2:]
        self._bounds.check_chars(self._size)
