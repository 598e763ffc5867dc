"""Who may read what, tried: random readers ask random questions, and nothing of others may come.

    python -m benchmarks.retrieval.permissions [--pairs 100000] [--documents 5000] [--groups 40]

Documents and questions are made up: each document has a word that is in no other one, and every
second question names one. Vectors are counts of hashed words: how well meaning is found is not what
is tried. What a reader may read is computed here once more, from the lists that the documents were
made with. In the second half of the pairs documents get other readers all the time. It also
measures what the filter costs.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import numpy as np

from benchmarks.retrieval.changing_readers import Groups, ReaderChanges, ReaderHistory
from kvstitch.retriever import ChunkSettings, Document, Retriever, Scope, SearchMode
from kvstitch.retriever.embedders import CountedVectors, Prompts, Vectors
from kvstitch.retriever.retriever import QueryVector
from kvstitch.retriever.scope import EVERYTHING, View, joined_readers
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/permissions.json")
SEED = 0
READERS = 200
QUESTIONS = 500
TOP_K = 10
OPEN = Scope(collection="open")  # some of the documents, for everybody
OPEN_DOCUMENTS = 1000
ROUNDS = 60
SUBJECTS = [f"subject{number}" for number in range(2000)]


class Words:
    """Tokens are words."""

    revision = "words"

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """See TokenCounter."""
        return [found.span() for found in re.finditer(r"\S+", text)]

    def count_tokens(self, text: str) -> int:
        """See TokenCounter."""
        return len(self.encode_offsets(text))


class HashedWords:
    """An embedder without a model."""

    name, revision, dim, prompts = "hashed-words", "1", 64, Prompts()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        """See Embedder."""
        counts = np.full((len(texts), self.dim), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                counts[row, crc32(word.encode()) % self.dim] += 1
        norms: Vectors = np.linalg.norm(counts, axis=1, keepdims=True)
        return counts / norms, sum(len(text.split()) for text in texts)


@dataclass(frozen=True)
class Asked:
    """A question, and the number of the document that it names; None: none."""

    text: str
    names: int | None


def main() -> None:
    """Tries, measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    rng = random.Random(SEED)
    groups = [f"group-{number}" for number in range(arguments.groups)]
    texts, readers = _documents(rng, arguments.documents, groups)
    views = [frozenset(rng.sample(groups, rng.randint(0, 6))) for _ in range(READERS)]
    questions = [_question(rng, arguments.documents) for _ in range(QUESTIONS)]
    with tempfile.TemporaryDirectory() as folder:
        retriever = Retriever.in_folder(Path(folder), HashedWords(), ChunkSettings(Words(), 64))
        retriever.start()
        for scope, count in ((Scope(), len(texts)), (OPEN, OPEN_DOCUMENTS)):
            given = [() if scope == OPEN else readers[n] for n in range(count)]
            retriever.ingest(
                [
                    Document(f"d{n}", texts[n], readers=joined_readers(given[n]))
                    for n in range(count)
                ],
                scope=scope,
            )
            print(f"{scope}: {count} documents stored", flush=True)
        vectors = [retriever.embed_query(asked.text) for asked in questions]
        pairs = [(rng.choice(views), rng.randrange(QUESTIONS)) for _ in range(arguments.pairs)]
        costs = _costs(retriever, pairs[:ROUNDS], questions, vectors)
        print(json.dumps(costs), flush=True)
        history = ReaderHistory(readers)
        half = len(pairs) // 2
        still = _try(retriever, pairs[:half], questions, vectors, history, lambda: None)
        with ReaderChanges(retriever, texts, groups, history, SEED) as changes:
            begins = changes.search_begins
            changing = _try(retriever, pairs[half:], questions, vectors, history, begins)
        retriever.close()
    result = {
        "documents": arguments.documents, "groups": arguments.groups, "readers": READERS,
        "questions": QUESTIONS, "pairs": len(pairs), "readers_stay": still,
        "readers_change": {**changing, "changes": changes.made},
        "median_ms": costs, "seed": SEED, "made": describe(),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if any(tried[wrong] for tried in (still, changing) for wrong in ("of_others", "missed")):
        raise SystemExit(1)


def _documents(
    rng: random.Random, count: int, groups: Sequence[str]
) -> tuple[list[str], list[Groups]]:
    """Return texts, and the groups that may read each: of a fifth everybody."""
    texts, readers = [], []
    for number in range(count):
        about = " ".join(rng.choices(SUBJECTS, k=20))
        rest = " ".join(rng.choices(SUBJECTS, k=20))
        texts.append(f"{about}. The reference is ref{number}x. {rest}")
        some = 0 if rng.random() < 0.2 else rng.randint(1, 4)
        readers.append(tuple(rng.sample(groups, some)))
    return texts, readers


def _question(rng: random.Random, documents: int) -> Asked:
    about = " ".join(rng.choices(SUBJECTS, k=3))
    if rng.random() < 0.5:
        return Asked(f"What about {about}?", None)
    number = rng.randrange(documents)
    return Asked(f'What does "ref{number}x" say of {about}?', number)


def _try(
    retriever: Retriever,
    pairs: Sequence[tuple[frozenset[str], int]],
    questions: Sequence[Asked],
    vectors: Sequence[QueryVector],
    history: ReaderHistory,
    begins: Callable[[], None],
) -> dict[str, Any]:
    """Return how many pairs were tried, passages found, passages of others, and documents missed
    that were named and may be read. Where readers change during a search, either is right."""
    modes = get_args(SearchMode)
    passages = of_others = missed = named = hidden = 0
    for turn, (member, place) in enumerate(pairs):
        asked, mode = questions[place], modes[turn % len(modes)]
        begins()
        began = time.monotonic()
        found = retriever.search(
            asked.text, TOP_K, scope=Scope(view=View(member)), mode=mode, vector=vectors[place]
        )
        passages += len(found)
        numbers = [int(hit.chunk.doc_id[1:]) for hit in found]
        of_others += sum(history.could_read(member, each, began) == {False} for each in numbers)
        if asked.names is not None and mode != "dense":
            readable = history.could_read(member, asked.names, began)
            if readable == {True}:
                named += 1
                missed += not found or numbers[0] != asked.names
            elif readable == {False}:
                hidden += 1
                of_others += any(f"ref{asked.names}x" in hit.chunk.text for hit in found)
        if turn % 5000 == 4999:
            print(f"{turn + 1} pairs, {of_others} passages of others", flush=True)
    return {"pairs": len(pairs), "passages": passages, "of_others": of_others,
            "named_and_readable": named, "missed": missed, "named_and_hidden": hidden}  # fmt: skip


def _costs(
    retriever: Retriever,
    pairs: Sequence[tuple[frozenset[str], int]],
    questions: Sequence[Asked],
    vectors: Sequence[QueryVector],
) -> dict[str, dict[str, float]]:
    """Return medians of milliseconds per search, in turns, by what is searched and by mode."""
    times: dict[str, dict[str, list[float]]] = {}
    for turn, (groups, place) in enumerate(pairs):
        # Every view is asked twice: what it shows is remembered until documents change.
        member = View(groups if turn % 2 == 0 else pairs[turn - 1][0])
        some = "some groups, for the first time" if turn % 2 == 0 else "some groups"
        for name, scope in (
            ("all groups", Scope(view=EVERYTHING)),
            (some, Scope(view=member)),
            ("some groups, nothing restricted", Scope(collection="open", view=member)),
            ("all groups, nothing restricted", OPEN),
        ):
            for mode in get_args(SearchMode):
                began = time.perf_counter()
                retriever.search(
                    questions[place].text, TOP_K, scope=scope, mode=mode, vector=vectors[place]
                )
                passed = 1000 * (time.perf_counter() - began)
                times.setdefault(name, {}).setdefault(mode, []).append(passed)
    return {
        name: {mode: round(statistics.median(each), 3) for mode, each in by_mode.items()}
        for name, by_mode in times.items()
    }


if __name__ == "__main__":
    main()
