"""The eight needle tasks: `One of the special magic numbers for old-river is: 1234567.`"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal

from benchmarks.quality.ruler.draft import Draft, Drafter, Setting
from benchmarks.quality.ruler.words import distinct
from service.errors import InvalidRequest

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = [round(100 * step / 39) for step in range(40)]  # percent
_ONE = {
    "instruction": (
        "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the {kind} afterwards.\n"
    ),
    "question": "\nWhat is the special magic {kind} for {query} mentioned in the provided text?",
    "answer_prefix": " The special magic {kind} for {query} mentioned in the provided text is",
}
_SEVERAL = {
    "instruction": (
        "Some special magic {kind}s are hidden within the following text. Make sure to memorize "
        "it. I will quiz you about the {kind}s afterwards.\n"
    ),
    "question": (
        "\nWhat are all the special magic {kind}s for {query} mentioned in the provided text?"
    ),
    "answer_prefix": " The special magic {kind}s for {query} mentioned in the provided text are",
}


@dataclass(frozen=True)
class Niah:
    """A needle task. `haystack` "needles" hides the needles among other needles."""

    haystack: Literal["noise", "essay", "needles"]
    key: Literal["word", "uuid"] = "word"
    value: Literal["number", "uuid"] = "number"
    keys: int = 1
    values: int = 1  # for every key
    queries: int = 1

    def prepare(self, setting: Setting) -> Drafter:
        """Makes drafts of the task.

        Raises:
            InvalidRequest: there are not enough words for the keys.
        """
        needed = self.keys + (self.haystack == "needles")
        if self.key == "word" and setting.words.pairs < needed:
            raise InvalidRequest(
                f"{setting.words.pairs} pairs of words do not make {needed} keys", field="words"
            )
        return partial(self._draft, setting)

    def _draft(self, setting: Setting, number: int, rng: random.Random) -> Draft:
        keys = distinct(_draws(self.key, setting, rng))
        values = distinct(_draws(self.value, setting, rng))

        def needle(key: str, value: str) -> str:
            return f"One of the special magic {self.value}s for {key} is: {value}."

        hidden = {key: list(islice(values, self.values)) for key in islice(keys, self.keys)}
        needles = [needle(key, value) for key, of_key in hidden.items() for value in of_key]
        asked = rng.sample(list(hidden), self.queries)
        query = f"{', '.join(asked[:-1])}, and {asked[-1]}" if len(asked) > 1 else asked[0]
        template = _ONE if self.queries * self.values == 1 else _SEVERAL
        texts = {part: text.format(kind=self.value, query=query) for part, text in template.items()}
        depths, places = sorted(rng.sample(DEPTHS, len(needles))), rng.getrandbits(64)
        lines = list[str]()  # other needles, as many as were needed so far

        def among_lines(size: int) -> str:
            if self.haystack == "noise":
                laid = [NOISE] * size
            else:
                lines.extend(map(needle, islice(keys, max(0, size - len(lines))), values))
                laid = lines[:size]
            indices = sorted(random.Random(places).sample(range(size), len(needles)), reverse=True)
            for index, line in zip(indices, needles, strict=True):
                laid.insert(index, line)
            return "\n".join(laid)

        def among_sentences(words: int) -> str:
            laid = setting.haystack.sentences(words)
            indices = [int(len(laid) * depth / 100) for depth in depths]
            for index, line in zip(reversed(indices), reversed(needles), strict=True):
                laid.insert(index, line)
            return " ".join(laid)

        essay = self.haystack == "essay"
        limited = self.haystack == "needles" and self.key == "word"
        return Draft(
            **texts,
            context=among_sentences if essay else among_lines,
            references=tuple(value for key in asked for value in hidden[key]),
            smallest=1 if essay else len(needles),
            most=setting.words.pairs - self.keys if limited else sys.maxsize,
            haystack=setting.haystack.name if essay else "",
        )


def _draws(kind: str, setting: Setting, rng: random.Random) -> Callable[[], str]:
    if kind == "word":
        return lambda: setting.words.pair(rng)
    if kind == "number":
        return lambda: str(rng.randint(1_000_000, 9_999_999))
    return lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4))
