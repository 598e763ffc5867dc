"""Asks one question in several ways over HTTP, and records what came back, a line of JSON each."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.quality.outcomes import occurring
from benchmarks.quality.tasks.documentation import Asked
from kvstitch.client import Client, Token
from kvstitch.client.errors import UnexpectedResponse
from kvstitch.client.options import GenerateOptions

DEFAULT: GenerateOptions = {}
FULL: GenerateOptions = {"fusion": {"method": "vanilla"}, "prefix_cache": False}
"""Full prefill of the whole prompt, of which nothing is left for later ones."""


@dataclass(frozen=True)
class Served:
    """One answer.

    Attributes:
        ttft_s: seconds from the request to the first piece of text, here.
        tokens: of the prompt.
        method: with its parameters, as the service reports it.
        recomputed: rows of stored documents that were computed, over the prompt's.
        behind: for each passage, chunks that its stored KV was computed behind.
        tiers: for each passage, where its KV came from.
        operations: of the prompt, over a full prefill's, with what was computed in full.
        taken_over: whether the answer was full prefill's from one of its tokens on.
        total_s: seconds to the end of the answer, as the service reports it.
    """

    text: str
    right: bool
    ttft_s: float
    tokens: int
    method: dict[str, Any]
    recomputed: float
    behind: Sequence[int]
    tiers: Sequence[str]
    operations: float = 0.0
    taken_over: bool = False
    total_s: float = 0.0


@dataclass(frozen=True)
class Record:
    """A question with its answers.

    Attributes:
        file: the document that answers.
        passages: of the prompt, in its order: document and first character.
        exact: the answers with `exact_below`, by its value.
    """

    question: str
    file: str
    passages: Sequence[tuple[str, int]]
    default: Served
    full: Served
    exact: Mapping[str, Served] = field(default_factory=dict)

    @property
    def of_one_document(self) -> int:
        """The most passages that are pieces of the same document."""
        return max(Counter(document for document, _ in self.passages).values(), default=0)

    @classmethod
    def of_line(cls, line: str) -> Self:
        raw = json.loads(line)
        passages = [(document, start) for document, start in raw["passages"]]
        default, full = Served(**raw["default"]), Served(**raw["full"])
        exact = {value: Served(**one) for value, one in raw.get("exact", {}).items()}
        return cls(raw["question"], raw["file"], passages, default, full, exact)


def ask(client: Client, asked: Asked, exact_below: Sequence[float] = ()) -> Record:
    """The answers to a question: with defaults, full prefill's, and one for each `exact_below`.

    Raises:
        KvstitchError: the service refused or failed.
    """
    default, passages = _answer(client, asked, DEFAULT)
    full, others = _answer(client, asked, FULL)
    if passages != others:
        raise UnexpectedResponse(f"two searches for {asked.question!r} found other passages")
    exact = {}
    for value in exact_below:
        options: GenerateOptions = {"exact_below": value, "prefix_cache": False}
        exact[f"{value:g}"], _ = _answer(client, asked, options)
    return Record(asked.question, asked.file, passages, default, full, exact)


def append(path: Path, record: Record) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def read(path: Path) -> list[Record]:
    """The records of earlier runs; a last line that was cut off is dropped."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [Record.of_line(line) for line in whole.splitlines()]


def _answer(
    client: Client, asked: Asked, options: GenerateOptions
) -> tuple[Served, list[tuple[str, int]]]:
    started, first_s = time.perf_counter(), None
    with client.stream(asked.question, **options) as events:
        for event in events:
            if first_s is None and isinstance(event, Token):
                first_s = time.perf_counter() - started
        answer = events.result
    cache = answer.cache
    served = Served(
        text=answer.text,
        right=any(occurring(answer.text, asked.answers)),
        ttft_s=answer.timing.ttft_s if first_s is None else first_s,
        tokens=answer.usage.prompt_tokens,
        method=answer.fusion,
        recomputed=cache.recomputed_ratio,
        behind=[document.behind for document in cache.documents],
        tiers=[document.tier for document in cache.documents],
        operations=cache.flops / cache.full_prefill_flops,
        taken_over=cache.exact_from is not None,
        total_s=answer.timing.total_s,
    )
    return served, [(c.doc_id, c.char_start) for c in answer.citations]
