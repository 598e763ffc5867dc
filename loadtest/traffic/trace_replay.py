"""Replays a trace: a JSONL file with one request per line and its time, in one of two forms:

    {"timestamp": 1200, "question": "…", "doc_ids": ["a", "b"], "max_tokens": 16}
    {"timestamp": 1200, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15]}

The second form is Mooncake's. Timestamps are in milliseconds, and there is one id for every 512
tokens; equal ids mean equal text. Here an id becomes a document made of sentences of the corpus, so
text that is shared in the trace is shared in the replay. Mooncake's ids stand for a block *and all
text before it*, so equal blocks after different text have different ids. Reuse by content is
therefore understated, not overstated. A document that a line names twice is sent once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import InvalidInput
from loadtest.traffic.corpus_reader import CorpusQuestion, read_lines
from loadtest.traffic.routes import CorpusDocument, LoadRequest
from loadtest.traffic.workloads import long_document


@dataclass(frozen=True)
class Scheduled:
    """A request with its time.

    Attributes:
        at_s: when to send it, in seconds from the start.
        request: the request.
    """

    at_s: float
    request: LoadRequest


@dataclass(frozen=True)
class TraceBlocks:
    """How hash ids become text that fits the served model.

    Attributes:
        words: words of the document that stands for one id.
        most: how many ids of a request are used, from the first on; the rest is left out.
    """

    words: int = 60
    most: int = 12


@dataclass
class Trace:
    """The requests of a trace.

    Attributes:
        path: the file.
        scheduled: the requests, in the order of time.
        shortened: how many requests had more ids than were used.
        speed: how many times faster than recorded it is replayed.
    """

    path: Path
    scheduled: list[Scheduled] = field(default_factory=list)
    shortened: int = 0
    speed: float = 1.0

    def requests(self, seed: int | str) -> Iterator[LoadRequest]:
        """The requests of the trace, repeated without end; the seed has no effect."""
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
    corpus: Sequence[CorpusDocument],
    questions: Sequence[CorpusQuestion],
    *,
    speed: float = 1.0,
    max_tokens: int | None = None,
    blocks: TraceBlocks | None = None,
) -> Trace:
    """Read a trace; its times count from the first request, divided by `speed`.

    Args:
        path: the JSONL file.
        corpus: documents that the trace names, or whose sentences stand for its hash ids.
        questions: used for lines without a question.
        speed: how many times faster than recorded it is replayed.
        max_tokens: limit of every answer.
        blocks: how hash ids become text.

    Raises:
        InvalidInput: a line cannot be used; the message names it.
    """
    if not speed > 0:
        raise InvalidInput(f"speed must be above 0, not {speed}")
    by_id = {document.doc_id: document for document in corpus}
    texts = _Texts(corpus, by_id, blocks or TraceBlocks())
    trace = Trace(path, speed=speed)
    rows = []
    for number, row in enumerate(read_lines(path), 1):
        try:
            rows.append((float(row["timestamp"]), number, row))
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(f"{path}, request {number}: `timestamp` in ms is missing") from None
    # A stable sort: requests with equal times stay in the order of the file.
    rows.sort(key=lambda entry: entry[0])
    for timestamp, number, row in rows:
        question = row.get("question") or questions[number % len(questions)].text
        try:
            documents, complete = texts.of(row)
        except ValueError as error:
            raise InvalidInput(f"{path}, request {number}: {error}") from None
        trace.shortened += not complete
        limits = (row.get("max_tokens"), row.get("output_length"), max_tokens)
        limit = min((int(value) for value in limits if value), default=None)
        at_s = (timestamp - rows[0][0]) / 1000 / speed
        trace.scheduled.append(Scheduled(at_s, LoadRequest(str(question), documents, limit)))
    if not trace.scheduled:
        raise InvalidInput(f"{path}: no requests")
    return trace


class _Texts:
    """Gives the documents of a line; each document made from a hash id is made once."""

    def __init__(
        self,
        corpus: Sequence[CorpusDocument],
        by_id: Mapping[str, CorpusDocument],
        blocks: TraceBlocks,
    ) -> None:
        self._corpus = corpus
        self._by_id = by_id
        self._blocks = blocks
        self._made: dict[int, CorpusDocument] = {}

    def of(self, row: Mapping[str, Any]) -> tuple[tuple[CorpusDocument, ...], bool]:
        """The documents of a line, and whether they are all that it names."""
        if "hash_ids" in row:
            ids = list(dict.fromkeys(int(value) for value in row["hash_ids"]))
            used = ids[: self._blocks.most]
            return tuple(self._block(value) for value in used), len(used) == len(ids)
        wanted = list(dict.fromkeys(row.get("doc_ids") or ()))
        unknown = [doc_id for doc_id in wanted if doc_id not in self._by_id]
        if unknown:
            raise InvalidInput(f"doc_ids that the corpus does not have: {', '.join(unknown)}")
        return tuple(self._by_id[doc_id] for doc_id in wanted), True

    def _block(self, value: int) -> CorpusDocument:
        if value not in self._made:
            document = long_document(self._corpus, f"block-{value}", self._blocks.words)
            self._made[value] = document
        return self._made[value]
