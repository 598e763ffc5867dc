"""A sample whose size is not fixed yet, and the search for the size that fills a length."""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.quality.ruler.words import Words
from benchmarks.quality.tasks.essays import Haystack
from service.errors import InvalidRequest


@dataclass(frozen=True)
class Setting:
    """What all samples of a task share.

    Attributes:
        count: number of tokens of a text.
        length: tokens of prompt and answer.
        answer_tokens: tokens of the answer.
        words: for keys and lists.
        haystack: text that needles are put into.
        data: folder of the question answering data sets.
    """

    count: Callable[[str], int]
    length: int
    answer_tokens: int
    words: Words
    haystack: Haystack
    data: Path | None


@dataclass(frozen=True)
class Draft:
    """A sample of open size.

    `context` makes the text for a size, in the task's own unit: lines, words or documents. The same
    size always gives the same text. Needles and answers do not depend on the size.
    """

    instruction: str
    context: Callable[[int], str]
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    smallest: int
    most: int = sys.maxsize
    haystack: str = ""  # name of the haystack, if the task has one

    def tokens(self, size: int, count: Callable[[str], int]) -> int:
        """Tokens of the prompt, each part encoded by itself, as the engine does."""
        parts = self.instruction, self.context(size), self.question + self.answer_prefix
        return sum(map(count, parts))


Drafter = Callable[[int, random.Random], Draft]  # number of the sample, its random generator


def fitting(draft: Draft, count: Callable[[str], int], budget: int) -> int:
    """The largest size whose prompt has at most `budget` tokens, by binary search.

    Raises:
        InvalidRequest: the smallest size does not fit.
    """

    def tokens(size: int) -> int:
        return draft.tokens(size, count)

    size = draft.smallest
    if (least := tokens(size)) > budget:
        raise InvalidRequest(
            f"the smallest prompt has {least} tokens, and {max(0, budget)} are left beside the "
            "answer's: ask for a greater length",
            field="length",
        )
    beyond = 2 * size
    while beyond <= draft.most and tokens(beyond) <= budget:
        size, beyond = beyond, 2 * beyond
    sizes = range(size + 1, min(beyond - 1, draft.most) + 1)
    return size + bisect_right(sizes, budget, key=tokens)
