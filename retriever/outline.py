"""What says where a place of a text belongs: the columns that identify a row, the path of a place
in JSON or YAML, what stands above a list. A chunk that begins within repeats it, as its lead.

    Ticket: T-1 | Text: … a long cell     →  "Ticket: T-1 | Text: … "
    staging: / service_17: / memory: 1G   →  "staging:", "  service_17:"
    It needs: / - a valve / - a seal      →  "It needs:"

A text is taken for JSON or YAML by how its lines look, as many are sent without a name.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kvstitch.retriever.boundaries import TextBoundaries

MAX_LINE_CHARS = 120  # of a line that is repeated
MIN_LINE_CHARS = 30  # of a line that is shortened further
MAX_LEVELS = 6  # that are repeated, the innermost
MAX_CELL_CHARS = 60  # of a cell that tells a row from others
MAX_CELLS = 3
_NEVER = 1 << 30  # deeper than any line: no chunk begins there
_SAMPLE = 400  # lines that tell whether a text is JSON or YAML
_LIST_LINES = 2000  # above a place, among which the beginning of its list is looked for
_ITEM = re.compile(r"[ \t]*(?:[-*+•–]|\d{1,3}[.)]|[A-Za-z][.)])[ \t]+\S")
_KEY = re.compile(r"""\s*(?:- +)*(?:"[^"\n]*"|'[^'\n]*'|[\w./$-][^\s:#]*)\s*:(?:\s|$)""")
_DATA = re.compile(
    r"""\s*(?:[\]\[{}]+,?|"[^"\n]*",?|-?[\d.]+(?:[eE][+-]?\d+)?,?|(?:true|false|null),?|---|#.*)\s*$"""
)
_BULLET = re.compile(r"\s*- ")
_CLOSES = ("}", "]")


@dataclass(frozen=True)
class Outline:
    text: str
    boundaries: TextBoundaries

    def lead(self, position: int, fits: Callable[[str], bool]) -> str:
        """Return what a chunk that begins here repeats, as much of it as fits; "" if nothing."""
        if row := self.boundaries.row_around(position):
            parts = self._row_lead(*row, position)
            while parts and not fits(" | ".join(parts)):
                # What the cell is called goes first, then all but the first column.
                parts = parts[:-1]
            return " | ".join([*parts, ""]).removesuffix("… | ") if parts else ""
        if not position or position >= len(self.text):
            return ""
        lines = self._path(position) if self.is_data else self._above_list(position)
        lines = [f"{_short(line)}\n" for line in lines[-MAX_LEVELS:]]
        while lines and not fits("".join(lines)):
            # The outermost tells parts of one form from one another.
            short = "" if len(lines) > 1 or len(lines[0]) < MIN_LINE_CHARS else lines[0]
            lines = [_short(short, len(short) // 2) + "\n"] if short else _without_one(lines)
        return "".join(lines)

    # -- rows --------------------------------------------------------------------------------------

    def _row_lead(self, start: int, end: int, position: int) -> list[str]:
        cells: list[tuple[int, str]] = []
        at = start
        for cell in self.text[start:end].split(" | "):
            cells.append((at, cell))
            at += len(cell) + 3
        before = [cell for at, cell in cells if at + len(cell) <= position]
        behind = [cell for at, cell in cells if at >= position]
        short = [c for c in before or behind if len(c) <= MAX_CELL_CHARS][:MAX_CELLS]
        at, cut = next((one for one in reversed(cells) if one[0] <= position), cells[0])
        if at < position < at + len(cut) and (name := _KEY.match(cut)):
            short.append(f"{name[0].strip()} …")
        return short

    # -- JSON and YAML -----------------------------------------------------------------------------

    @cached_property
    def is_data(self) -> bool:
        """Whether the text is JSON or YAML."""
        lines = [line for line in self.text[:65_536].splitlines() if line.strip()][:_SAMPLE]
        known = [bool(_KEY.match(line) or _DATA.match(line)) for line in lines]
        counted = [k for k, line in zip(known, lines, strict=True) if k or not _BULLET.match(line)]
        within = sum(line[0] in " \t" for line in lines)
        first = next((line for line in lines if not line.startswith(("#", "---"))), "")
        begins = bool(_KEY.match(first)) or first.strip()[:1] in ("{", "[")
        return (begins and len(lines) > 4 and sum(counted) >= 0.85 * len(counted)
                and sum(known) >= 0.4 * len(lines) and within >= 0.25 * len(lines))  # fmt: skip

    @cached_property
    def _lines(self) -> tuple[array[int], array[int], array[int]]:
        """Where each line that is not blank starts, how deep it is, and the line that it is in."""
        starts, depths, parents = array("q"), array("q"), array("q")
        stack: list[int] = []
        for line in re.finditer(r"^([ \t]*)(\S[^\n]*)$", self.text, re.M):
            depth = 2 * len(line[1].expandtabs())
            if line[2].startswith(_CLOSES):
                depth = _NEVER  # it ends what lines above it have begun
            elif line[2].startswith("- "):
                depth += 1  # an item stands below its key, though no deeper
            while stack and depths[stack[-1]] >= depth:
                stack.pop()
            parents.append(stack[-1] if stack else -1)
            stack.append(len(starts))
            starts.append(line.start())
            depths.append(depth)
        return starts, depths, parents

    def _line(self, number: int) -> str:
        starts = self._lines[0]
        end = self.text.find("\n", starts[number])
        return self.text[starts[number] : end if end >= 0 else len(self.text)]

    def _path(self, position: int) -> list[str]:
        starts, depths, parents = self._lines
        here = bisect_right(starts, position) - 1
        out: list[str] = []
        number = here if self.text[starts[here] : position].strip() else parents[here]
        while number >= 0:
            line = self._line(number)
            if line.strip() in ("{", "[", "-") and number + 1 < here:
                # An object of a list is known by its first value, one that is the whole text not.
                whole = number == 0 and depths.count(depths[0]) == 1
                line = "" if whole else self._line(number + 1)
                line = "" if line.rstrip().endswith(("{", "[")) else line
            out += [line] if line.strip() not in ("", "{", "[") else []
            number = parents[number]
        return out[::-1]

    def cut(self, position: int, half: int, high: int, fits: Callable[[int, int], bool]) -> int:
        """Return where a chunk of JSON or YAML that may reach from `position` to `high` ends:
        before the outermost line. What fits into a chunk is not divided."""
        starts, depths, _ = self._lines
        first, last = bisect_right(starts, position), bisect_right(starts, high)
        for low in (first, bisect_right(starts, half)):
            found = range(low, last)
            if not found:
                continue
            best = max(found, key=lambda number: (-depths[number], number))
            if low == first and depths[first - 1] > depths[best]:  # the rest of a part ends with it
                return starts[next(n for n in found if depths[n] == depths[best])]
            end = next((n for n in range(best + 1, len(starts)) if depths[n] <= depths[best]),
                       len(starts))  # fmt: skip
            stop = starts[end] if end < len(starts) else len(self.text)
            if starts[best] > half or fits(starts[best], stop):
                return starts[best]
        return 0

    # -- lists -------------------------------------------------------------------------------------

    def _above_list(self, position: int) -> list[str]:
        """Return what stands above the list that a place is in, and the items around it."""
        out: list[str] = []
        lines = self._upwards(position)
        at, line = next(lines)
        depth = _depth(line)
        if at != position:  # within a line
            if not _ITEM.match(line):
                return []
            out.append(line)
        elif not _ITEM.match(line) and not depth:
            return []
        item = bool(_ITEM.match(line))
        for _, line in lines:
            if not line.strip():
                continue
            if _ITEM.match(line):
                if _depth(line) < depth or not item:
                    out.append(line)
                    depth = min(depth, _depth(line))
                item = True
            elif not line[0].isspace():
                if not item:
                    return []  # indented code
                if len(line) <= 2 * MAX_LINE_CHARS and (
                    line.rstrip()[-1:] in ":：" or line[0] == "#"
                ):
                    out.append(line)
                break
        return out[::-1]

    def _upwards(self, position: int) -> Iterator[tuple[int, str]]:
        """Yield the line of a place, then those above it, with their starts."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        end = len(self.text) if end < 0 else end
        for _ in range(_LIST_LINES):
            yield start, self.text[start:end]
            if not start:
                return
            end = start - 1
            start = self.text.rfind("\n", 0, end) + 1


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_one(lines: list[str]) -> list[str]:
    """Leave out the line that tells least: what only opens a part before what names an object."""
    opens = [line.rstrip().endswith(("[", "{", ":")) for line in lines]
    if any(opens) and not all(opens):
        del lines[opens.index(True)]
        return lines
    return [*lines[:-2], lines[-1]] if len(lines) > 2 else lines[:-1]


def _short(line: str, most: int = MAX_LINE_CHARS) -> str:
    line = line.rstrip()
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
