"""`kvstitch eval`: how well the service finds what one's own questions should find.

A line of the file is a question with the documents that should be found, or a piece of text that a
found passage should hold:

    {"question": "How long is the warranty?", "documents": ["manual.pdf"]}
    {"question": "How long is the warranty?", "text": "two years"}

Each question is searched in each mode. A passage is relevant if it is of one of the documents, or
holds the text. For each mode, over the first k passages, of which a document counts once:

    hit rate   share of questions with a relevant one
    MRR        mean of 1 / rank of the first relevant one, 0 where there is none
    nDCG       sum of 1 / log2(rank + 1) over relevant ones, over the most that there could be

Of a question that hybrid misses it is said which stage lost it: no ranking finds it, a ranking has
it and the fusion did not keep it, it is below the first k, or the document is not stored.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kvstitch.client import Client, errors
from kvstitch.records.answers import SearchResult
from kvstitch.service.cli.options import WrongArgument, add_client_options, client, positive
from kvstitch.service.cli.output import console, emit, progress_bars, table

Mode = Literal["sparse", "dense", "hybrid"]
MODES: Final[tuple[Mode, ...]] = ("sparse", "dense", "hybrid")
DEPTH = 50  # passages looked at, to say how far below the first k something is

NOT_STORED = "its document is not stored"
NOT_FOUND = "neither words nor meaning find it"
SPARSE_ONLY = "words find it, meaning does not"
DENSE_ONLY = "meaning finds it, words do not"
BOTH_LOW = "both find it, too low"


@dataclass(frozen=True)
class Question:
    """A question, and what makes a passage relevant: a document's id, or a text."""

    text: str
    documents: frozenset[str]
    holds: str | None


@dataclass(frozen=True)
class Found:
    """Ranks, from 1, of the relevant passages for a question in one mode; a document's first."""

    mode: Mode
    ranks: list[int]

    def within(self, k: int) -> list[int]:
        return [rank for rank in self.ranks if rank <= k]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("questions", metavar="FILE", type=Path, help="JSON lines: question, and documents or text")
    add("--top-k", type=positive, default=5, help="passages that count (default: 5)")
    add("--collection", help="search there (default: default)")
    add("--mode", choices=MODES, action="append", help="only this one; may be repeated")
    add_client_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Search for every question in every mode, and print what was found."""
    questions = read(args.questions)
    modes = tuple(mode for mode in MODES if not args.mode or mode in args.mode)
    rows: list[dict[str, Any]] = []
    with client(args) as service, progress_bars(as_json=args.json) as bars:
        bar = bars.add_task("questions", total=len(questions), note="")
        for question in questions:
            found = [_search(service, question, mode, args) for mode in modes]
            lost = _lost(service, question, found, args)
            rows.append({"question": question.text, "found": found, "lost": lost})
            bars.advance(bar)
    wanted = [len(question.documents) or 1 for question in questions]
    by_mode = {
        mode: figures([row["found"][place] for row in rows], wanted, args.top_k)
        for place, mode in enumerate(modes)
    }
    if args.json:
        samples = [{**row, "found": [asdict(one) for one in row["found"]]} for row in rows]
        emit({"top_k": args.top_k, "questions": len(rows), "modes": by_mode, "samples": samples})
        return 0
    _show(by_mode, rows, args.top_k)
    return 0


def read(path: Path) -> list[Question]:
    """Read the questions."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongArgument(f"{path} cannot be read as UTF-8 text: {error}") from error
    questions = [
        _question(line, f"{path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not questions:
        raise WrongArgument(f"{path} holds no questions")
    return questions


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("question"), str):
        raise WrongArgument(f'{where}: must be an object with "question", a string')
    documents, holds = row.get("documents"), row.get("text")
    if isinstance(documents, str):
        documents = [documents]
    named = isinstance(documents, list) and all(isinstance(name, str) for name in documents)
    if documents and named and holds is None:
        return Question(row["question"], frozenset(documents), None)
    if documents is None and isinstance(holds, str) and holds.strip():
        return Question(row["question"], frozenset(), " ".join(holds.split()).casefold())
    raise WrongArgument(
        f'{where}: must have either "documents", ids of what should be found, or "text", which a '
        "found passage should hold"
    )


def figures(found: Sequence[Found], wanted: Sequence[int], k: int) -> dict[str, float]:
    """Return hit rate, MRR and nDCG of one mode."""
    count = len(found)
    ranks = [one.within(k) for one in found]
    best = [sum(_gain(rank) for rank in range(1, min(number, k) + 1)) for number in wanted]
    return {
        "hit_rate": sum(map(bool, ranks)) / count,
        "mrr": sum(1 / min(each) for each in ranks if each) / count,
        "ndcg": sum(
            min(1.0, sum(map(_gain, each)) / most) for each, most in zip(ranks, best, strict=True)
        )
        / count,
    }


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def _search(service: Client, question: Question, mode: Mode, args: argparse.Namespace) -> Found:
    top_k = max(DEPTH, args.top_k)
    found = service.search(question.text, collection=args.collection, retrieval=mode, top_k=top_k)
    ranks: list[int] = []
    seen: set[str] = set()
    place = 0
    for passage in found.results:
        if passage.doc_id in seen and question.holds is None:
            continue
        seen.add(passage.doc_id)
        place += 1
        if _relevant(question, passage):
            ranks.append(place)
            if question.holds is not None:
                break  # more passages with the text would find nothing more
    return Found(mode, ranks)


def _relevant(question: Question, passage: SearchResult) -> bool:
    if question.holds is None:
        return passage.doc_id in question.documents
    return question.holds in " ".join((passage.text or "").split()).casefold()


def _lost(
    service: Client, question: Question, found: Sequence[Found], args: argparse.Namespace
) -> str | None:
    """Return which stage lost what the last mode does not find; None: it finds it."""
    if found[-1].within(args.top_k):
        return None
    if question.documents and not any(
        _stored(service, name, args.collection) for name in question.documents
    ):
        return NOT_STORED
    by = {one.mode: bool(one.ranks) for one in found}
    if not any(by.values()):
        return NOT_FOUND
    if by.get("sparse") and by.get("dense"):
        return BOTH_LOW
    return SPARSE_ONLY if by.get("sparse") else DENSE_ONLY


def _stored(service: Client, doc_id: str, collection: str | None) -> bool:
    try:
        service.get_document(doc_id, collection=collection)
    except errors.NotFound:
        return False
    return True


def _show(by_mode: dict[Mode, dict[str, float]], rows: Sequence[dict[str, Any]], k: int) -> None:
    names = (f"hit rate@{k}", f"MRR@{k}", f"nDCG@{k}")
    shown = table("mode", *names, numbers=names, title=f"{len(rows)} questions")
    for mode, each in by_mode.items():
        shown.add_row(mode, *(f"{each[name]:.3f}" for name in ("hit_rate", "mrr", "ndcg")))
    out = console()
    out.print(shown)
    if not (lost := [row for row in rows if row["lost"]]):
        return
    last = list(by_mode)[-1]
    missed = table("question", "lost because", *by_mode, title=f"missed by {last}: {len(lost)}")
    for row in lost:
        ranks = (str(one.ranks[0]) if one.ranks else "–" for one in row["found"])
        missed.add_row(row["question"][:200], row["lost"], *ranks)
    out.print(missed)
