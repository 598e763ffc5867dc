"""Samples, as every suite generates them: a question about a context, as text or token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextSample:
    """A sample as text. The prompt is `instruction` ‖ `context` ‖ `question`.

    Attributes:
        suite: name of the suite.
        task: name of the task.
        number: of the sample in its task.
        instruction: first part of the prompt, with line breaks and tags.
        context: what is cut into documents.
        question: last part of the prompt.
        references: accepted answers.
        metric: name of a metric in `benchmarks.quality.scores`.
        answer_tokens: largest length of the answer.
        answer_prefix: beginning of the answer, which the model continues.
        stop: texts that end the answer; it is cut before the first of them.
        chat: whether to use the model's chat template, where it has one.
        details: for figures, such as depth, length and haystack.
        classes: names of all classes, for the metric of a classification.
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
    """A sample as the engine gets it: S, D_1..D_k and Q as token ids, each encoded by itself."""

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
        """16 hex characters that identify everything that the answer and its score depend on."""
        text = self.text
        limits = [text.stop, text.answer_tokens]
        judged = [text.task, text.metric, text.references, text.classes, limits]
        record = json.dumps([judged, self.system, self.documents, self.question])
        return hashlib.blake2b(record.encode(), digest_size=8).hexdigest()
