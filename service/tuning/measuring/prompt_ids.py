"""A prompt as token ids of its segments, with a key by which its records are found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Prompt:
    """One prompt as token ids.

    Attributes:
        answers: the accepted texts, empty if none is known.
        behind: for a prefix mode in which other documents stand between S and a document when it is
            precomputed, these, for each document. Further modes to compare have names that begin
            with `primer` or `neighbours`.
    """

    task: str
    system: tuple[int, ...]
    documents: tuple[tuple[int, ...], ...]
    question: tuple[int, ...]
    answers: tuple[str, ...] = ()
    behind: Mapping[str, Sequence[Sequence[Sequence[int]]]] = field(
        default_factory=dict, compare=False
    )

    @property
    def tokens(self) -> int:
        return len(self.system) + sum(map(len, self.documents)) + len(self.question)

    @property
    def key(self) -> str:
        """16 hex characters that identify the prompt."""
        text = json.dumps([self.task, self.system, self.documents, self.question, self.answers])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
