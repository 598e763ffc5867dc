"""What a paragraph of a Word document is by its styles, and its number in a list."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from docx.oxml.ns import qn

_HEADING = re.compile(r"heading ([1-9])")
_PLACE = re.compile(r"%([1-9])")
_CHINESE = "\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"
_TEN = "\u5341"
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
          (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip
MAX_DEPTH = 20  # of styles that are based on one another


def value(element: Any, name: str) -> str | None:
    """Return the value of a child such as `w:numId`; None if there is no such child."""
    child = None if element is None else element.find(qn(name))
    return None if child is None else str(child.get(qn("w:val"), ""))


def switched_on(properties: Any, name: str) -> bool | None:
    """Return whether a property such as `w:vanish` is on; None if it is not given."""
    child = None if properties is None else properties.find(qn(name))
    if child is None:
        return None
    return child.get(qn("w:val"), "true") not in ("0", "false", "off")


@dataclass(frozen=True)
class Style:
    """What a paragraph, or a run of text, is. None: its base says so."""

    level: int | None = None
    list_id: str | None = None
    depth: int | None = None
    hidden: bool | None = None
    based_on: str | None = None

    @classmethod
    def of(cls, paragraph: Any, run: Any = None) -> Self:
        """Return what properties of a paragraph and of a run say."""
        outline = value(paragraph, "w:outlineLvl")
        level = None
        if outline is not None and outline.isdecimal():
            level = int(outline) + 1 if int(outline) < 9 else 0
        numbers = None if paragraph is None else paragraph.find(qn("w:numPr"))
        depth = value(numbers, "w:ilvl")
        return cls(
            level,
            value(numbers, "w:numId"),
            int(depth) if depth is not None and depth.isdecimal() else None,
            switched_on(run, "w:vanish"),
        )

    def over(self, base: "Style") -> "Style":
        """Return what both say; this one comes first."""
        return Style(
            base.level if self.level is None else self.level,
            base.list_id if self.list_id is None else self.list_id,
            base.depth if self.depth is None else self.depth,
            base.hidden if self.hidden is None else self.hidden,
        )


class Styles:
    def __init__(self, styles: Any) -> None:
        self._styles: dict[str, Style] = {}
        for style in styles.iterchildren(qn("w:style")):
            key = style.get(qn("w:styleId"), "")
            found = Style.of(style.find(qn("w:pPr")), style.find(qn("w:rPr")))
            name = (value(style, "w:name") or "").lower()
            if heading := _HEADING.fullmatch(name):
                found = Style(int(heading[1])).over(found)
            elif name == "title":
                found = Style(1).over(found)
            self._styles[key] = replace(found, based_on=value(style, "w:basedOn"))
            if style.get(qn("w:default")) == "1" and style.get(qn("w:type")) == "paragraph":
                self._styles.setdefault("", Style(based_on=key))

    def named(self, key: str) -> Style:
        """Return a style with what it is based on."""
        found = Style()
        name: str | None = key
        for _ in range(MAX_DEPTH):
            style = self._styles.get(name or "") if name is not None else None
            if style is None:
                break
            found, name = found.over(style), style.based_on
        return found

    def of(self, paragraph: Any) -> tuple[Style, str]:
        """Return what a paragraph is, its own properties before its style's, and its style's id."""
        properties = paragraph.find(qn("w:pPr"))
        key = value(properties, "w:pStyle") or ""
        return Style.of(properties).over(self.named(key)), key


@dataclass
class _Level:
    start: int
    kind: str
    text: str
    legal: bool  # all numbers in it are written in digits
    style: str | None


@dataclass
class _List:
    levels: dict[int, _Level] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


class Numbering:
    """Counts the paragraphs of numbered lists as Word does."""

    def __init__(self, numbering: Any, styles: Styles) -> None:
        self._lists: dict[str, _List] = {}
        self._of_id: dict[str, str] = {}  # a list's id → the definition that it counts in
        self._overrides: dict[str, dict[int, int]] = {}  # a list's id → depth → first number
        if numbering is None:
            return
        linked: dict[str, str] = {}
        for definition in numbering.iterchildren(qn("w:abstractNum")):
            key = definition.get(qn("w:abstractNumId"), "")
            levels = {
                int(level.get(qn("w:ilvl"), "0")): _level(level)
                for level in definition.iterchildren(qn("w:lvl"))
            }
            self._lists[key] = _List(levels)
            if link := value(definition, "w:numStyleLink"):
                linked[key] = link
        for number in numbering.iterchildren(qn("w:num")):
            key = number.get(qn("w:numId"), "")
            definition = value(number, "w:abstractNumId") or ""
            own: dict[int, _Level] = {}
            for override in number.iterchildren(qn("w:lvlOverride")):
                depth = int(override.get(qn("w:ilvl"), "0"))
                if (start := value(override, "w:startOverride")) is not None and start.isdecimal():
                    self._overrides.setdefault(key, {})[depth] = int(start)
                if (level := override.find(qn("w:lvl"))) is not None:
                    own[depth] = _level(level)
            if own and definition in self._lists:
                # Levels of its own, but the numbers go on from the definition's.
                shared = self._lists[definition]
                definition = f"{definition}/{key}"
                self._lists[definition] = _List({**shared.levels, **own}, shared.counts)
            self._of_id[key] = definition
        for key, link in linked.items():
            target = self._of_id.get(styles.named(link).list_id or "")
            if target in self._lists:
                self._lists[key] = self._lists[target]

    def next(self, style: Style, key: str) -> str | None:
        """Count a paragraph; returns its printed number, "" for a bullet, None: no list."""
        found = self._lists.get(self._of_id.get(style.list_id or "", ""))
        if found is None:
            return None
        depth = style.depth
        if depth is None:
            depth = next((d for d, level in found.levels.items() if key and level.style == key), 0)
        level = found.levels.get(depth)
        if level is None:
            return None
        restart = self._overrides.get(style.list_id or "", {}).pop(depth, None)
        if restart is not None:
            found.counts[depth] = restart
        elif depth in found.counts:
            found.counts[depth] += 1
        else:
            found.counts[depth] = level.start
        for deeper in [d for d in found.counts if d > depth]:
            del found.counts[deeper]
        if level.kind == "bullet":
            return ""
        return _PLACE.sub(lambda match: self._digit(found, level, int(match[1]) - 1), level.text)

    def _digit(self, found: _List, level: _Level, depth: int) -> str:
        other = found.levels.get(depth)
        if other is None:
            return ""
        count = found.counts.setdefault(depth, other.start)
        return written_number(count, "decimal" if level.legal else other.kind)


def _level(element: Any) -> _Level:
    start = value(element, "w:start") or "1"
    return _Level(
        int(start) if start.isdecimal() else 1,
        value(element, "w:numFmt") or "decimal",
        value(element, "w:lvlText") or "",
        bool(switched_on(element, "w:isLgl")),
        value(element, "w:pStyle"),
    )


def written_number(number: int, kind: str) -> str:
    """Return a number of a list in letters, digits or words, by Word's name for these."""
    write = _KINDS.get(kind)
    return str(number) if write is None or number < 1 else write(number)


def _letters(number: int) -> str:
    return chr(97 + (number - 1) % 26) * min((number - 1) // 26 + 1, 20)


def _roman(number: int) -> str:
    out = ""
    for worth, letters in _ROMAN:
        while number >= worth and len(out) < 40:
            out, number = out + letters, number - worth
    return out


def _chinese(number: int) -> str:
    if number > 99:
        return str(number)
    tens, ones = divmod(number, 10)
    head = "" if not tens else (_CHINESE[tens] if tens > 1 else "") + _TEN
    return head + (_CHINESE[ones] if ones else "")


def _ordinal(number: int) -> str:
    special = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 < number % 100 < 14 else special.get(number % 10, 'th')}"


_KINDS: dict[str, Callable[[int], str]] = {
    "decimalZero": lambda number: f"{number:02}",
    "lowerLetter": _letters,
    "upperLetter": lambda number: _letters(number).upper(),
    "lowerRoman": _roman,
    "upperRoman": lambda number: _roman(number).upper(),
    "ordinal": _ordinal,
    "chineseCounting": _chinese, "chineseCountingThousand": _chinese,
    "japaneseCounting": _chinese, "taiwaneseCountingThousand": _chinese,
    "ideographDigital": _chinese,
    "decimalEnclosedCircle": lambda n: chr(0x245F + n) if n <= 20 else str(n),
    "decimalEnclosedCircleChinese": lambda n: chr(0x245F + n) if n <= 20 else str(n),
    "none": lambda number: "",
}  # fmt: skip
