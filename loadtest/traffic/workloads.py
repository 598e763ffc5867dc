"""What is asked: which documents go with which question, in which order. Knows no times.

    Zipf          documents by popularity, sent along in a shuffled or fixed order
    Permutator    few long documents in ever new orders (after LMCache's long-doc permutator)

A workload is a function of its seed: the n-th request of a run is the same for every method.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.traffic.corpus_files import Question
from loadtest.traffic.routes import Document, Request


class Workload(Protocol):
    def requests(self, seed: int | str) -> Iterator[Request]:
        """Requests without end."""

    def describe(self) -> dict[str, Any]:
        """For the report."""


@dataclass(frozen=True)
class Zipf:
    """Each request has `count` different documents; the one of popularity rank i is drawn with a
    weight of 1 / i^alpha. alpha 0: all alike; about 1: few documents take most requests."""

    documents: Sequence[Document]
    questions: Sequence[Question]
    count: int
    alpha: float = 1.0
    shuffled: bool = True
    """False: a request's documents are always in the corpus's order."""
    search: bool = False
    """Only the question is sent and the service searches; popularity is that of questions."""
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.documents):
            raise ValueError(
                f"{self.count} documents per request: the corpus has {len(self.documents)}"
            )

    def requests(self, seed: int | str) -> Iterator[Request]:
        # Ranks belong to the corpus, not to a run: what was popular stays so.
        ranked = random.Random("ranks").sample(range(len(self.documents)), len(self.documents))
        weights = [1 / rank**self.alpha for rank in range(1, len(ranked) + 1)]
        asked_of: dict[str, list[Question]] = {}
        for question in self.questions:
            asked_of.setdefault(question.doc_id, []).append(question)
        rng = random.Random(f"zipf/{seed}")
        while True:
            chosen = [ranked[place] for place in draw(rng, weights, self.count)]
            popular = self.documents[chosen[0]].doc_id
            asked = rng.choice(asked_of.get(popular) or self.questions).text
            if self.search:
                yield Request(asked, max_tokens=self.max_tokens)
                continue
            if self.shuffled:
                rng.shuffle(chosen)
            else:
                chosen.sort()
            documents = tuple(self.documents[index] for index in chosen)
            yield Request(asked, documents, self.max_tokens)

    def describe(self) -> dict[str, Any]:
        return {
            "workload": "zipf",
            "alpha": self.alpha,
            "documents": len(self.documents),
            "documents_per_request": self.count,
            "order": "as searched" if self.search else "shuffled" if self.shuffled else "fixed",
            "max_tokens": self.max_tokens,
        }


def draw(rng: random.Random, weights: Sequence[float], count: int) -> list[int]:
    """`count` different indices, each drawn with a chance proportional to its weight among those
    left; the first is drawn as if alone (Efraimidis and Spirakis, by exponential keys)."""
    keys = [rng.expovariate(weight) for weight in weights]
    return sorted(range(len(keys)), key=keys.__getitem__)[:count]


@dataclass(frozen=True)
class Permutator:
    """All requests have the same long documents, in `permutations` different orders.

    LMCache's workload: 5 documents of 5,000 tokens, a system prompt of 1,000, 10 permutations. A
    prefix cache helps no request but those of the same order.
    """

    documents: Sequence[Document]
    questions: Sequence[Question]
    permutations: int = 10
    system: str = ""
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        possible = math.factorial(len(self.documents))
        if not 1 <= self.permutations <= possible:
            raise ValueError(
                f"{self.permutations} permutations: {len(self.documents)} documents have {possible}"
            )

    def orders(self, seed: int | str) -> list[tuple[int, ...]]:
        """Different orders of the documents' indices."""
        rng = random.Random(f"permutator/{seed}")
        found: dict[tuple[int, ...], None] = {}
        indices = range(len(self.documents))
        while len(found) < self.permutations:
            found[tuple(rng.sample(indices, len(indices)))] = None
        return list(found)

    def requests(self, seed: int | str) -> Iterator[Request]:
        rng = random.Random(f"questions/{seed}")
        for order in itertools.cycle(self.orders(seed)):
            documents = tuple(self.documents[index] for index in order)
            question = rng.choice(self.questions).text
            yield Request(question, documents, self.max_tokens, self.system)

    def describe(self) -> dict[str, Any]:
        return {
            "workload": "permutator",
            "documents": len(self.documents),
            "words_per_document": len(self.documents[0].text.split()),
            "permutations": self.permutations,
            "system_words": len(self.system.split()),
            "max_tokens": self.max_tokens,
        }


def long_document(corpus: Sequence[Document], name: str, words: int) -> Document:
    """A document of `words` words made of the corpus's sentences, drawn by its name: the same name
    is the same text in every run."""
    rng = random.Random(f"document/{name}")
    taken: list[str] = []
    while len(taken) < words:
        sentences = rng.choice(corpus).text.split(". ")
        taken += f"{rng.choice(sentences).strip().rstrip('.')}.".split()
    return Document(name, name, " ".join(taken[:words]))
