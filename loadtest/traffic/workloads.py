"""Workloads: which documents go with which question, and in which order.

    Zipf          documents drawn by popularity, sent in a shuffled or fixed order
    Permutator    a few long documents in many orders (like LMCache's long-doc permutator)

A workload depends only on its seed: the n-th request of a run is the same for every method.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.errors import InvalidInput
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.routes import CorpusDocument, LoadRequest


class Workload(Protocol):
    """An endless sequence of requests."""

    def requests(self, seed: int | str) -> Iterator[LoadRequest]:
        """Requests without end."""

    def describe(self) -> dict[str, Any]:
        """Its parameters, for the report."""


@dataclass(frozen=True)
class Zipf:
    """Requests with different documents, drawn by popularity.

    The document of popularity rank i has the weight 1 / i^alpha.

    Attributes:
        documents: the corpus.
        questions: the questions.
        count: documents per request.
        alpha: 0: all documents are equally popular; about 1: a few take most requests.
        shuffled: False: the documents of a request are always in the order of the corpus.
        search: send only the question and let the service search; then questions are popular.
        max_tokens: longest answer in tokens.
    """

    documents: Sequence[CorpusDocument]
    questions: Sequence[CorpusQuestion]
    count: int
    alpha: float = 1.0
    shuffled: bool = True
    search: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.documents):
            raise InvalidInput(
                f"{self.count} documents per request: the corpus has {len(self.documents)}"
            )

    def requests(self, seed: int | str) -> Iterator[LoadRequest]:
        # The ranks do not depend on the seed: popular documents are popular in every run.
        ranked = random.Random("ranks").sample(range(len(self.documents)), len(self.documents))
        weights = [1 / rank**self.alpha for rank in range(1, len(ranked) + 1)]
        asked_of: dict[str, list[CorpusQuestion]] = {}
        for question in self.questions:
            asked_of.setdefault(question.doc_id, []).append(question)
        rng = random.Random(f"zipf/{seed}")
        while True:
            chosen = [ranked[place] for place in draw(rng, weights, self.count)]
            popular = self.documents[chosen[0]].doc_id
            asked = rng.choice(asked_of.get(popular) or self.questions).text
            if self.search:
                yield LoadRequest(asked, max_tokens=self.max_tokens)
                continue
            if self.shuffled:
                rng.shuffle(chosen)
            else:
                chosen.sort()
            documents = tuple(self.documents[index] for index in chosen)
            yield LoadRequest(asked, documents, self.max_tokens)

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
    """Draw `count` different indices, by weight among those that are left.

    Source:
        Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006 (exponential
        keys).
    """
    keys = [rng.expovariate(weight) for weight in weights]
    return sorted(range(len(keys)), key=keys.__getitem__)[:count]


@dataclass(frozen=True)
class Permutator:
    """Requests with the same long documents, in different orders.

    LMCache's workload has 5 documents of 5,000 tokens, a system prompt of 1,000 tokens and 10
    permutations. A prefix cache helps only requests with the same order.

    Attributes:
        documents: the long documents.
        questions: the questions.
        permutations: number of different orders.
        system: the system message; empty: none.
        max_tokens: longest answer in tokens.
    """

    documents: Sequence[CorpusDocument]
    questions: Sequence[CorpusQuestion]
    permutations: int = 10
    system: str = ""
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        possible = math.factorial(len(self.documents))
        if not 1 <= self.permutations <= possible:
            raise InvalidInput(
                f"{self.permutations} permutations: {len(self.documents)} documents have {possible}"
            )

    def orders(self, seed: int | str) -> list[tuple[int, ...]]:
        """The different orders, as indices of the documents."""
        rng = random.Random(f"permutator/{seed}")
        found: dict[tuple[int, ...], None] = {}
        indices = range(len(self.documents))
        while len(found) < self.permutations:
            found[tuple(rng.sample(indices, len(indices)))] = None
        return list(found)

    def requests(self, seed: int | str) -> Iterator[LoadRequest]:
        rng = random.Random(f"questions/{seed}")
        for order in itertools.cycle(self.orders(seed)):
            documents = tuple(self.documents[index] for index in order)
            question = rng.choice(self.questions).text
            yield LoadRequest(question, documents, self.max_tokens, self.system)

    def describe(self) -> dict[str, Any]:
        return {
            "workload": "permutator",
            "documents": len(self.documents),
            "words_per_document": len(self.documents[0].text.split()),
            "permutations": self.permutations,
            "system_words": len(self.system.split()),
            "max_tokens": self.max_tokens,
        }


def long_document(corpus: Sequence[CorpusDocument], name: str, words: int) -> CorpusDocument:
    """A document of `words` words made of sentences of the corpus.

    The name is the seed: the same name gives the same text in every run.
    """
    rng = random.Random(f"document/{name}")
    taken: list[str] = []
    while len(taken) < words:
        sentences = rng.choice(corpus).text.split(". ")
        taken += f"{rng.choice(sentences).strip().rstrip('.')}.".split()
    return CorpusDocument(name, name, " ".join(taken[:words]))
