"""What the demo asks, and when an answer is right.

Judging is strict: an accepted answer stands in the text and is not denied there; the other side of
a comparison is named behind "than" or not at all; no word says the opposite of what was asked
("more" where the question has "fewer"); and the text does not say that the documents are silent. A
question that the documents do not answer is right if the text does say so.
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
NOT_THERE = re.compile(
    r"\b(?:(?:do|does|did|is|are|was|were|can|could)(?: not|n[o']t)(?: explicitly| directly)? "
    r"(?:say|state|mention|contain|provide|specif|give|tell|include|know|list|find|be found|answer)"
    r"|no (?:information|mention|answer)|cannot|unknown|nowhere)",
    re.IGNORECASE,
)
"""How a text says that the documents do not hold the answer."""
_NO = r"(?:\b(?:not|no|never|neither|nor|unlike|except|without)|n't)\b"
_DENIED = re.compile(rf"{_NO}(?: (?!but\b|than\b)\w+){{0,3}} ?$")
_CONTRAST = (
    r"(?:rather than|instead of|(?:and |but )?not|compared (?:to|with)|unlike|than|before|after)"
)
_POLES = tuple(
    (re.compile(rf"\b(?:{one})\b"), re.compile(rf"\b(?:{other})\b"))
    for one, other in (
        ("more|most|greater|greatest", "fewer|fewest|less|least"),
        ("larger|largest|bigger|biggest|greater|greatest", "smaller|smallest"),
        ("longer|longest", "shorter|shortest"),
        ("higher|highest|taller|tallest", "lower|lowest|smaller|shorter"),
        ("older|oldest|earlier|earliest|before|first", "younger|newer|later|latest|after|last"),
        ("warmer|hotter|warmest", "colder|cooler|coldest"),
        ("cheaper|cheapest", "dearer|costlier|more expensive"),
        ("faster|fastest", "slower|slowest"),
    )
)


@dataclass(frozen=True)
class DemoQuestion:
    """A question about the corpus.

    Attributes:
        kind: What it takes to answer it.
        answers: Accepted answers, as the documents put them first; none if they hold none.
        wrong: What must not be named as the answer: the other side of a comparison.
        documents: Ids of the documents that hold the answer.
        split: Formats and settings are chosen on `development`; figures are from `test`.
        answerable: Whether full prefill of SmolLM2 answers it (demo/answerable.py). What it cannot
            answer says nothing about how a method treats passages.
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
        plain = _plain(text)
        if not self.answers:
            return NOT_THERE.search(plain) is not None
        for wrong in self.wrong:  # what the answer is set against may be named so
            plain = re.sub(rf"\b{_CONTRAST} (?:the |that of |in )?{_words(wrong)}", "", plain)
        found = [match for answer in self.answers for match in _places(answer, plain)]
        named = any(not _DENIED.search(plain[: match.start()]) for match in found)
        misled = any(_places(wrong, plain) for wrong in self.wrong)
        return named and not misled and not NOT_THERE.search(plain) and not self._turned(plain)

    def _turned(self, plain: str) -> bool:
        """Whether a comparison is answered in the other direction, or denied."""
        if self.kind != "comparison":
            return False
        asked = self.question.casefold()
        pairs = [*_POLES, *((other, one) for one, other in _POLES)]
        turned = any(one.search(asked) and other.search(plain) for one, other in pairs)
        return turned or re.search(_NO, plain) is not None


def _words(phrase: str) -> str:
    """The pattern of `phrase` as whole words; plurals count."""
    return rf"(?<![\w.]){re.escape(_plain(phrase))}(?:e?s|'s)?(?!\w|\.\d)"


def _places(phrase: str, plain: str) -> list[re.Match[str]]:
    return list(re.finditer(_words(phrase), plain))


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
