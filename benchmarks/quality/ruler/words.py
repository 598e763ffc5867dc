"""Words for keys and lists. `words.txt` was written for this project: common English words.

A model with a small vocabulary needs its own words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Words:
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Words:
        """Reads a file with sections [adjectives], [nouns] and [verbs] of words between blanks."""
        sections: dict[str, list[str]] = {}
        section = list[str]()
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                section = sections.setdefault(line.strip("[]"), [])
            else:
                section += line.split()
        return cls(**{name: tuple(words) for name, words in sections.items()})

    @cached_property
    def every(self) -> list[str]:
        return sorted({*self.adjectives, *self.nouns, *self.verbs})

    @property
    def pairs(self) -> int:
        return len(set(self.adjectives)) * len(set(self.nouns))

    def pair(self, rng: random.Random) -> str:
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"


def distinct(draw: Callable[[], T]) -> Iterator[T]:
    """Endless distinct results of `draw`; never returns if more are taken than `draw` can give."""
    seen = set[T]()
    while True:
        drawn = draw()
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


ENGLISH = Words.read(Path(__file__).parent / "words.txt")
