"""What the demo asks, and when an answer is right.

A question with an answer is right if one of its accepted answers stands in the text, before any
of the wrong ones. One that the documents do not answer is right if the text says so.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["single", "reworded", "two", "comparison", "absent"]
Split = Literal["development", "test"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPLITS: tuple[Split, ...] = get_args(Split)
KIND_NAMES: dict[Kind, str] = {
    "single": "one fact",
    "reworded": "one fact, in other words",
    "two": "two documents",
    "comparison": "comparison",
    "absent": "not in the documents",
}
NOT_THERE = re.compile(
    r"\b(?:(?:do|does|did|is|are|was|were|can|could)(?: not|n[o']t)(?: explicitly| directly)? "
    r"(?:say|state|mention|contain|provide|specif|give|tell|include|know|list|find|be found|answer)"
    r"|no (?:information|mention|answer)|cannot|unknown|nowhere)",
    re.IGNORECASE,
)
"""How a text says that the documents do not hold the answer."""


@dataclass(frozen=True)
class DemoQuestion:
    """A question about the corpus.

    Attributes:
        kind: What it takes to answer it.
        answers: Accepted answers, as the documents put them first; none if they hold none.
        wrong: What must not be named before an accepted answer: the other side of a comparison.
        documents: Ids of the documents that hold the answer.
        split: Formats and settings are chosen on `development`; figures are from `test`.
        answerable: Whether full prefill of the demo's model answers it from passages of these
            documents alone (demo/answerable.py). What it cannot answer even then says nothing
            about how a method treats several passages.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    kind: Kind = "single"
    wrong: tuple[str, ...] = ()
    split: Split = "test"
    answerable: bool = True

    @property
    def expected(self) -> str:
        return self.answers[0] if self.answers else "(not in the documents)"

    def is_right(self, text: str) -> bool:
        if not self.answers:
            return NOT_THERE.search(text) is not None
        named = [at for answer in self.answers if (at := _place(answer, text)) is not None]
        misled = [at for wrong in self.wrong if (at := _place(wrong, text)) is not None]
        return bool(named) and (not misled or min(named) < min(misled))


def _place(phrase: str, text: str) -> int | None:
    """Where `phrase` stands in `text` as whole words, in any case; plurals count."""
    pattern = rf"(?<![\w.]){re.escape(_plain(phrase))}(?:e?s|'s)?(?!\w|\.\d)"
    found = re.search(pattern, _plain(text))
    return found.start() if found else None


def _plain(text: str) -> str:
    """Lower case, single blanks, and numbers in digits alone: 18,000 and 18 thousand are 18000."""
    text = re.sub(r"(?<=\d)[,\u202f](?=\d{3})", "", text.casefold().replace("\u2019", "'"))
    text = " ".join(text.replace("-", " ").split())
    for word, zeros in (("hundred", "00"), ("thousand", "000")):
        text = re.sub(rf"(?<![\d.])(\d+) {word}\b", rf"\g<1>{zeros}", text)
    return text


def read_demo_questions(path: Path) -> list[DemoQuestion]:
    """Reads questions from JSON lines."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name in ("answers", "documents", "wrong"):
            row[name] = tuple(row[name])
        found.append(DemoQuestion(**row))
    return found
