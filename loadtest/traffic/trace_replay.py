"""Replays a trace: a JSONL file with one request a line, sent when the trace says. Two forms:

    {"timestamp": 1200, "question": "…", "doc_ids": ["a", "b"], "max_tokens": 16}
    {"timestamp": 1200, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15]}

The second is Mooncake's: timestamps in milliseconds, one id for every 512 tokens; equal ids are
equal text. Here an id becomes a document made of the corpus's sentences: what is shared in the
trace is shared in the replay. Mooncake's ids stand for a block *and all before it*, so equal
blocks behind other ones count as different there: reuse by content is understated, not overstated.
What a line names twice is sent once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.traffic.corpus_files import Question, read_lines
from loadtest.traffic.routes import Document, Request
from loadtest.traffic.workloads import long_document


@dataclass(frozen=True)
class Scheduled:
    """A request and when it is to be sent, in seconds from the start."""

    at_s: float
    request: Request


@dataclass(frozen=True)
class TraceBlocks:
    """How a hash id becomes text that fits the model served."""

    words: int = 60
    """Words of a document that stands for one id."""
    most: int = 12
    """Ids of a request that are used, the first ones; the rest of a longer prompt is left out."""


@dataclass
class Trace:
    """A trace as requests in order of time; `shortened` of them had more ids than were used."""

    path: Path
    scheduled: list[Scheduled] = field(default_factory=list)
    shortened: int = 0
    speed: float = 1.0

    def requests(self, seed: int | str) -> Iterator[Request]:
        """What the trace asks, again and again; there is nothing to draw."""
        return itertools.cycle(item.request for item in self.scheduled)

    def describe(self) -> dict[str, Any]:
        return {
            "workload": "trace",
            "trace": self.path.name,
            "requests": len(self.scheduled),
            "shortened": self.shortened,
            "speed": self.speed,
        }


def read_trace(
    path: Path,
    corpus: Sequence[Document],
    questions: Sequence[Question],
    *,
    speed: float = 1.0,
    max_tokens: int | None = None,
    blocks: TraceBlocks | None = None,
) -> Trace:
    """The first request is sent at once, the others as far behind it as in the trace, divided by
    `speed`. `max_tokens` limits every answer. Raises ValueError that names the line."""
    if not speed > 0:
        raise ValueError(f"speed must be above 0, not {speed}")
    by_id = {document.doc_id: document for document in corpus}
    texts = _Texts(corpus, by_id, blocks or TraceBlocks())
    trace = Trace(path, speed=speed)
    rows = []
    for number, row in enumerate(read_lines(path), 1):
        try:
            rows.append((float(row["timestamp"]), number, row))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}, request {number}: `timestamp` in ms is missing") from None
    # Stable: requests of one moment stay in the file's order.
    rows.sort(key=lambda entry: entry[0])
    for timestamp, number, row in rows:
        question = row.get("question") or questions[number % len(questions)].text
        try:
            documents, complete = texts.of(row)
        except ValueError as error:
            raise ValueError(f"{path}, request {number}: {error}") from None
        trace.shortened += not complete
        limits = (row.get("max_tokens"), row.get("output_length"), max_tokens)
        limit = min((int(value) for value in limits if value), default=None)
        at_s = (timestamp - rows[0][0]) / 1000 / speed
        trace.scheduled.append(Scheduled(at_s, Request(str(question), documents, limit)))
    if not trace.scheduled:
        raise ValueError(f"{path}: no requests")
    return trace


class _Texts:
    """The documents of a line; those made of hash ids are made once."""

    def __init__(
        self, corpus: Sequence[Document], by_id: Mapping[str, Document], blocks: TraceBlocks
    ) -> None:
        self._corpus = corpus
        self._by_id = by_id
        self._blocks = blocks
        self._made: dict[int, Document] = {}

    def of(self, row: Mapping[str, Any]) -> tuple[tuple[Document, ...], bool]:
        """Documents, and whether they are all that the line names."""
        if "hash_ids" in row:
            ids = list(dict.fromkeys(int(value) for value in row["hash_ids"]))
            used = ids[: self._blocks.most]
            return tuple(self._block(value) for value in used), len(used) == len(ids)
        wanted = list(dict.fromkeys(row.get("doc_ids") or ()))
        unknown = [doc_id for doc_id in wanted if doc_id not in self._by_id]
        if unknown:
            raise ValueError(f"doc_ids that the corpus does not have: {', '.join(unknown)}")
        return tuple(self._by_id[doc_id] for doc_id in wanted), True

    def _block(self, value: int) -> Document:
        if value not in self._made:
            document = long_document(self._corpus, f"block-{value}", self._blocks.words)
            self._made[value] = document
        return self._made[value]
