"""Whether passages are about a question: fits the floor of relevance, and measures it elsewhere.

    python -m benchmarks.quality.fetch_docs
    python -m benchmarks.quality.fetch_docs \\
        --packages benchmarks/retrieval/data/translated_packages.json
    python -m benchmarks.retrieval.floor [--out benchmarks/results/floor.json]

Four collections: Debian's documentation, passages of Natural Questions, and Debian's guides in
German and French. Of each, questions are asked

    answered    that it answers; some once more with a word misspelt
    elsewhere   that another subject's texts answer
    removed     that it answers, while the document that does is removed with a fifth of the others

The functions are fitted on the development part; the floor is the highest at which none of the
collections loses more than 2 of 100 answered questions whose answer was among the five passages.
The table counts the test part: other questions about other documents. It is made with what
`retriever/relevance.py` holds, and what was fitted is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.quality.tasks import documentation, natural_questions
from benchmarks.retrieval.recall_targets import word_pieces
from kvstitch.retriever import ChunkSettings, Document, Embedder, LocalEmbedder, Retriever
from kvstitch.retriever.relevance import (
    FLOOR,
    WORDS,
    Evidence,
    Fit,
    evidence,
    fits_of,
    logistic,
    weighty_words,
)
from kvstitch_tune.records import describe
from tests.fakes.models import TokenizerCounter

DATA = Path(__file__).parent / "data"
TOP_K, CHUNK_TOKENS, FOLDS = 5, 400, 5
MOST_LOST = 0.02
KINDS = ("answered", "misspelt", "elsewhere", "removed")
# Which of Evidence's terms each function has weights of, besides the constant.
SHAPES = {"whole": (1, 2, 3, 4), "part": (1, 3, 5), "words": (1, 6)}


@dataclass(frozen=True)
class Asked:
    """A question; `doc_id` answers it, None: nothing in the collection does."""

    question: str
    split: str
    answers: Sequence[str] = ()
    doc_id: str | None = None


@dataclass(frozen=True)
class Case:
    """A question as it was asked, and what was found; `holds`: its answer, as far as is known."""

    collection: str
    kind: str
    split: str
    question: str
    found: Evidence | None  # None: not judged
    holds: bool


def collections(docs: Path) -> Iterator[tuple[str, list[Document], list[Asked]]]:
    """Name, documents and questions of each collection."""
    english = [
        Asked(asked.question, split, asked.answers, asked.file)
        for split in ("dev", "test")
        for asked in documentation.load(split)
    ]
    natural = {split: natural_questions.load(split) for split in ("dev", "test")}
    others = [Asked(each.question, s) for s, found in natural.items() for each in found[300:500]]
    yield "docs", documentation.read(docs), english + others
    for split, found in natural.items():
        foreign = [Asked(each.question, split) for each in english if each.split == split]
        asked = [Asked(each.question, split, each.answers, each.id) for each in found[:300]]
        passages = [Document(e.id, e.passage.text, title=e.passage.title) for e in found]
        yield "nq", passages, asked + foreign
    rows = [json.loads(line) for line in (DATA / "translated_questions.jsonl").open()]
    packages = documentation.packages(DATA / "translated_packages.json")
    for language in ("de", "fr"):
        files = {
            name: docs / package.name / name
            for package in packages
            for name in package.files
            if name.startswith(f"{language}-")
        }
        asked = [
            Asked(row[language], row["split"], row["answers"],
                  row["page"] and f"{language}-{row['page']}.html")
            for row in rows
        ]  # fmt: skip
        pages = [(name, path.read_bytes()) for name, path in files.items()]
        yield language, documentation.parsed(pages), asked


def cases(
    name: str, documents: Sequence[Document], asked: Sequence[Asked], embedder: Embedder
) -> Iterator[Case]:
    """Ask all questions of a collection, whole and with a fifth of its documents removed."""
    counter = TokenizerCounter.from_file(word_pieces())
    with TemporaryDirectory(prefix="kvstitch-") as folder:
        retriever = Retriever.in_folder(
            Path(folder), embedder, ChunkSettings(counter, CHUNK_TOKENS)
        )
        retriever.start()
        retriever.ingest(documents)
        for each in asked:
            yield from _case(
                name, "elsewhere" if each.doc_id is None else "answered", each, retriever
            )
        for each in asked:
            if each.doc_id is not None and (wrong := misspelt(each.question)):
                yield from _case(name, "misspelt", replace(each, question=wrong), retriever)
        sources = sorted({each.doc_id for each in asked if each.doc_id is not None})
        random.Random(2).shuffle(sources)
        by_id = {document.doc_id: document for document in documents}
        for fold in range(FOLDS):
            gone = set(sources[fold::FOLDS])
            retriever.delete(gone)
            for each in asked:
                if each.doc_id in gone:
                    yield from _case(name, "removed", each, retriever)
            retriever.ingest(by_id[doc_id] for doc_id in gone)
        retriever.catalog.close()


def misspelt(question: str) -> str | None:
    """The question with two letters of its longest word exchanged."""
    word = max(question.split(), key=len)
    if len(word) < 6 or not word.isalpha():
        return None
    return question.replace(word, f"{word[:2]}{word[3]}{word[2]}{word[4:]}")


def _case(name: str, kind: str, asked: Asked, retriever: Retriever) -> Iterator[Case]:
    passages = retriever.search(asked.question, TOP_K, mode="hybrid")
    rarity = retriever.catalog.rarity(weighty_words(asked.question))
    found = evidence(asked.question, rarity, passages)
    own = [p for p in passages if kind == "removed" or p.chunk.doc_id == asked.doc_id]
    text = " ".join(passage.chunk.text for passage in own).lower()
    holds = any(answer.lower() in text for answer in asked.answers)
    if not (kind == "removed" and holds):  # else another document answers it
        yield Case(name, kind, asked.split, asked.question, found, holds)


def fitted(observed: Sequence[Case], shape: Sequence[int]) -> Fit:
    """Fit a function to cases by Newton's method, each kind of each collection with one weight,
    and move it so that the floor is at `FLOOR`."""
    pairs = [
        (case, case.found)
        for case in observed
        if case.found and case.kind != "misspelt" and (case.holds or case.kind != "answered")
    ]
    columns = [0, *shape]
    terms = np.array([found.terms for _, found in pairs])[:, columns]
    answered = np.array([case.kind == "answered" for case, _ in pairs])
    groups = [(case.collection, case.kind) for case, _ in pairs]
    weight = np.array([(2 if g[1] == "answered" else 1) / groups.count(g) for g in groups])
    weight *= len(pairs) / weight.sum()
    coefficients, ridge = np.zeros(len(columns)), np.diag([0.0, *(0.02 for _ in shape)])
    for _ in range(30):
        likely = 1 / (1 + np.exp(-terms @ coefficients))
        slope = terms.T @ (weight * (answered - likely)) - ridge @ coefficients
        curve = (terms.T * (weight * likely * (1 - likely))) @ terms + ridge
        coefficients += np.linalg.solve(curve, slope)
    logits, names = terms @ coefficients, np.array([case.collection for case, _ in pairs])
    floors = (
        np.quantile(logits[answered & (names == name)], MOST_LOST, method="lower")
        for name in dict.fromkeys(names)
    )
    coefficients[0] -= min(floors) - 1e-3
    fit = np.zeros(7)
    fit[columns] = coefficients.round(3)
    return tuple(map(float, fit))  # type: ignore[return-value]


def table(observed: Sequence[Case], fit: Fit) -> list[dict[str, Any]]:
    """Per collection and kind: how many, and the share below the floor: told apart, or lost."""
    rows = []
    for name in (*dict.fromkeys(case.collection for case in observed), "all"):
        for kind in KINDS:
            below = [
                case.found is not None and logistic(fit, case.found) < FLOOR
                for case in observed
                if case.kind == kind and name in (case.collection, "all")
                and (case.holds or kind not in ("answered", "misspelt"))
            ]  # fmt: skip
            share = round(100 * sum(below) / len(below), 1)
            rows.append({"collection": name, "kind": kind, "questions": len(below), "below": share})
    return rows


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, default=documentation.default_folder())
    parser.add_argument("--embedder", help="a folder (default: MiniLM)")
    parser.add_argument("--out", type=Path, help="also write the result here, as JSON")
    args = parser.parse_args(given)
    embedder = LocalEmbedder(args.embedder)
    observed = [case for each in collections(args.docs) for case in cases(*each, embedder=embedder)]
    dev, test = ([case for case in observed if case.split == s] for s in ("dev", "test"))
    recorded = dict(zip(SHAPES, (*(fits_of(embedder.name) or (WORDS, WORDS)), WORDS), strict=True))
    result: dict[str, Any] = {"environment": describe(), "functions": {}}
    for name, shape in SHAPES.items():
        fit = fitted(dev, shape)
        rows = table(test, recorded[name])
        result["functions"][name] = {"fitted": fit, "recorded": recorded[name], "test": rows}
        print(f"{name}: fitted {fit}\n    {'as' if fit == recorded[name] else 'NOT as'} recorded")
        for row in rows:
            print("    {collection:5} {kind:10} {questions:5} {below:6.1f} % below".format(**row))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
