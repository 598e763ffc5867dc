"""What every suite generates: one question over one context, as text or as token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextSample:
    """As a suite writes it; nothing here knows a tokenizer.

    `instruction` ‖ `context` ‖ `question` is the whole prompt: templates, line breaks and tags are
    part of them. `chat`: put the model's chat template around it, where it has one; `answer_prefix`
    follows the assistant header (or the question). The generated text is cut before the first of
    `stop`, and scored by `metric` (a name of `benchmarks.quality.scores`) against `references`; a
    classification's metric also asks for `classes`, the names of all. `details` is for figures:
    depth, length, haystack.
    """

    suite: str
    task: str
    number: int
    instruction: str
    context: str
    question: str
    references: tuple[str, ...]
    metric: str
    answer_tokens: int
    answer_prefix: str = ""
    stop: tuple[str, ...] = ()
    chat: bool = True
    details: Mapping[str, str | float] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """As the engine is asked: S, D_1..D_k and Q as ids, each encoded by itself."""

    text: TextSample
    system: tuple[int, ...]
    documents: tuple[tuple[int, ...], ...]
    question: tuple[int, ...]

    @property
    def task(self) -> str:
        return self.text.task

    @property
    def tokens(self) -> int:
        return len(self.system) + sum(map(len, self.documents)) + len(self.question)

    @property
    def key(self) -> str:
        """16 hex characters over everything that decides the answer and its score."""
        text = self.text
        limits = [text.stop, text.answer_tokens]
        judged = [text.task, text.metric, text.references, text.classes, limits]
        record = json.dumps([judged, self.system, self.documents, self.question])
        return hashlib.blake2b(record.encode(), digest_size=8).hexdigest()
