"""Reads what is written in a picture, with RapidOCR and the weights in its package.

It knows Latin letters with their accents, Chinese, Japanese and some Greek. Of other scripts it
makes blanks, zeros or single letters; such lines are left out, and their pages are named.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvstitch.service.gateway.documents.parsing.parsed_file import ParseWarning, places_warning
from kvstitch.service.gateway.documents.parsing.pdf.words import LONG_SIDE, Word

if TYPE_CHECKING:
    import numpy as np

MIN_SCORE = 0.6  # of a line that is kept
SURE_SCORE = 0.9  # of a page, over its letters
MIN_LETTERS = 0.4  # of a line's width over its height; plain type has 2, Chinese 1
MOST_UNREAD = 0.1  # share of a page's lines
_OPTIONS = {
    "Global.log_level": "critical",
    "Global.max_side_len": 2 * LONG_SIDE,
    "Global.use_cls": False,  # here a page is turned as a whole, so that its lines stay in order
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    # Lines are found in a smaller picture: half the time and memory, and as many words right.
    "Det.limit_type": "max",
    "Det.limit_side_len": 1280,
    "Rec.rec_batch_num": 1,
}


@dataclass(frozen=True)
class _Line:
    text: str
    score: float
    x0: float
    x1: float
    y0: float  # from above
    y1: float
    tall: bool


@dataclass(frozen=True)
class _Reading:
    """A picture's lines; `unread` of them were left out."""

    lines: list[_Line]
    unread: int

    @property
    def score(self) -> float:
        """The mean over letters, and nothing for lines that were left out."""
        letters = sum(len(line.text) for line in self.lines)
        mean = sum(line.score * len(line.text) for line in self.lines) / max(letters, 1)
        return mean * len(self.lines) / max(len(self.lines) + self.unread, 1)

    @property
    def sideways(self) -> bool:
        return sum(line.tall for line in self.lines) > len(self.lines) / 2


class Ocr:
    """Reads at most so many pictures of a file, and keeps account of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read: list[str] = []
        self._doubtful: list[str] = []
        self._over: list[str] = []
        self._scores: list[float] = []
        self._count = 0
        self._longest = 0.0

    def words(self, picture: np.ndarray, points: float, place: str) -> list[Word]:
        """Return the words of a picture, line by line; none if it could not be read."""
        if self._count >= self._most or not self._has_time():
            self._over.append(place)
            return []
        if not self._count:
            _take_more()
        self._count += 1
        start = time.process_time()
        reading = self._upright(picture)
        self._longest = max(self._longest, time.process_time() - start)
        if not reading.lines:
            return []
        self._read.append(place)
        self._scores.append(reading.score)
        all_lines = len(reading.lines) + reading.unread
        if reading.score < SURE_SCORE or reading.unread > MOST_UNREAD * all_lines:
            self._doubtful.append(place)
        height = float(picture.shape[0])
        return [word for line in reading.lines for word in _words(line, height, points)]

    def warnings(self) -> list[ParseWarning]:
        """Return what was read, what hardly, and what not because it would have been too much."""
        sure = 100 * statistics.fmean(self._scores or [0.0])
        return [
            places_warning(code, message, places)
            for code, message, places in (
                (
                    "read_by_ocr",
                    "pictures of text were read by OCR, which takes some letters for others "
                    f"(it is sure of {sure:.0f} %): {{places}}",
                    self._read,
                ),
                (
                    "ocr_doubtful",
                    "OCR could hardly read, or not read all of: {places}; the script may be one "
                    "that it does not know: look at what was stored",
                    self._doubtful,
                ),
                (
                    "ocr_stopped",
                    f"not read by OCR, because that is done for {self._most} pages of a file and "
                    "no longer than its CPU time lasts: {places}; raise KVSTITCH_OCR_PAGES, or "
                    "split it",
                    self._over,
                ),
            )
            if places
        ]

    @cached_property
    def _engine(self) -> Any:
        from rapidocr import RapidOCR

        return RapidOCR(params=_OPTIONS)

    def _has_time(self) -> bool:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        left = most - time.process_time()
        return most == resource.RLIM_INFINITY or left > 2 * self._longest + 2

    def _upright(self, picture: np.ndarray) -> _Reading:
        """Read a picture; one that cannot be read as it stands, or lies on its side, is turned."""
        import numpy as np

        reading = self._once(picture)
        if reading.sideways:
            turns = [1, 3]
        elif reading.unread or (reading.lines and reading.score < SURE_SCORE):
            turns = [2]
        else:
            return reading
        turned = [self._once(np.ascontiguousarray(np.rot90(picture, turn))) for turn in turns]
        return max([reading, *turned], key=lambda one: (not one.sideways) * one.score)

    def _once(self, picture: np.ndarray) -> _Reading:
        found = self._engine(picture)
        if found.boxes is None or not found.txts:
            return _Reading([], 0)
        lines = []
        unread = 0
        for text, score, box in zip(found.txts, found.scores, found.boxes, strict=True):
            xs, ys = [float(x) for x, _ in box], [float(y) for _, y in box]
            width, height = max(xs) - min(xs), max(ys) - min(ys)
            tall = height > 1.5 * width
            if _legible(text, float(score), max(width, height) / max(min(width, height), 1.0)):
                text = " ".join(text.split())
                lines.append(_Line(text, float(score), min(xs), max(xs), min(ys), max(ys), tall))
            else:
                unread += 1
        return _Reading(_in_rows(lines), unread)


def _take_more() -> None:
    """Raise this process's limits of CPU and memory to what they are with OCR."""
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, most))


def _legible(text: str, score: float, length: float) -> bool:
    """Return whether a line is one that was read; `length` is its width over its height."""
    letters = "".join(text.split())
    if score < MIN_SCORE or len(letters) < MIN_LETTERS * length:
        return False
    return len(letters) < 8 or len(set(letters)) > 2


def _in_rows(lines: Sequence[_Line]) -> list[_Line]:
    """Sort lines from above, and those of one height from the left."""
    rows: list[list[_Line]] = []
    for line in sorted(lines, key=lambda line: line.y0 + line.y1):
        first = rows[-1][0] if rows else None
        if first and (line.y0 + line.y1) / 2 < (first.y0 + 2 * first.y1) / 3:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.x0)]


def _words(line: _Line, height: float, points: float) -> list[Word]:
    """Return a line's words; where each stands is told by how many characters are before it."""
    words = []
    char = (line.x1 - line.x0) / len(line.text)
    start = 0
    for index, text in enumerate(line.text.split(" ")):
        x0 = line.x0 + start * char
        words.append(
            Word(
                text,
                x0 * points,
                (x0 + len(text) * char) * points,
                (height - line.y1) * points,
                (height - line.y0) * points,
                breaks=not index,
            )
        )
        start += len(text) + 1
    return words
