"""The workloads, in rounds: one round asks a prompt of every kind.

    shuffled       documents drawn from the corpus by popularity (Zipf), in a shuffled order
    reordered      the documents of the prompt before, in another order, with another question
    conversation   the prompt before, its answer, and a further question; twice
    repeated       the prompt before, token for token
    new            documents that nobody has seen

`reordered` leaves the first document nowhere near its place, so that a prefix cache is left with
the system prompt. Everything depends on the seed alone, and every server gets the same rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.peers.prompts import Prompt
from benchmarks.quality.tasks.natural_questions import Asked
from loadtest.traffic.routes import CorpusDocument
from loadtest.traffic.workloads import draw
from service.prompt import Turn

SHUFFLED, REORDERED, CONVERSATION = "shuffled", "reordered", "conversation"
REPEATED, NEW = "repeated", "new"
WORKLOADS = {
    SHUFFLED: "documents repeat (Zipf), shuffled",
    REORDERED: "the same documents in a new order",
    CONVERSATION: "a conversation grows over the same documents",
    REPEATED: "the identical prompt again",
    NEW: "all documents are new",
}

Encode = Callable[[Sequence[Turn], Sequence[CorpusDocument]], tuple[int, ...]]


@dataclass(frozen=True)
class Source:
    """A document, and a question that it answers."""

    document: CorpusDocument
    question: str
    answer: str


def sources(asked: Sequence[Asked]) -> list[Source]:
    """Every distinct passage with the first question about it, in the order of the file."""
    first: dict[str, Source] = {}
    for each in asked:
        passage = each.passage
        document = CorpusDocument(f"nq-{len(first)}", passage.title, passage.text)
        first.setdefault(passage.text, Source(document, each.question, each.answers[0]))
    return list(first.values())


@dataclass(frozen=True)
class Rounds:
    """Makes rounds of prompts.

    Attributes:
        corpus: documents that are drawn again and again; kvstitch has them beforehand.
        unseen: documents for `new` and for warming up; each is used once.
        count: documents of a prompt.
        encode: turns and documents to token ids.
        alpha: of the Zipf law: the document of rank i has the weight 1 / i^alpha.
        begins: the words that begin every answer, as in the prompts.
    """

    corpus: Sequence[Source]
    unseen: Sequence[Source]
    count: int
    encode: Encode
    alpha: float = 1.0
    begins: str = ""

    def __post_init__(self) -> None:
        if not 4 <= self.count <= len(self.corpus):
            raise ValueError(f"a prompt needs 4 to {len(self.corpus)} documents, not {self.count}")

    def warm_up(self) -> list[Prompt]:
        """Two prompts for every server before the first round: new documents, and then again."""
        prompt = self._prompt("warm-up", NEW, self._turns(self.unseen[:1]), self._unseen(0))
        return [prompt, prompt]

    def made(self, seed: int) -> Iterator[list[Prompt]]:
        """Rounds, until there are no unseen documents left."""
        rng = random.Random(f"peers {seed}")
        weights = [1 / rank**self.alpha for rank in range(1, len(self.corpus) + 1)]
        ranked = rng.sample(self.corpus, len(self.corpus))
        for number in count(1):
            if (number + 1) * self.count > len(self.unseen):
                return
            chosen = [ranked[place] for place in draw(rng, weights, self.count)]
            rng.shuffle(chosen)
            yield list(self._round(number, chosen, rng))

    def _round(self, number: int, chosen: list[Source], rng: random.Random) -> Iterator[Prompt]:
        asked = rng.sample(chosen, 4)
        yield self._prompt(f"{number} a", SHUFFLED, self._turns(asked[:1]), chosen)
        other = reordered(chosen, rng)
        for letter, last in zip("bcd", (2, 3, 4), strict=True):
            workload = REORDERED if letter == "b" else CONVERSATION
            yield (prompt := self._prompt(
                f"{number} {letter}", workload, self._turns(asked[1:last]), other
            ))  # fmt: skip
        again = (prompt.turns, prompt.documents, prompt.ids)
        yield Prompt(f"{number} e", REPEATED, *again)
        new = self._unseen(number)
        yield self._prompt(f"{number} f", NEW, self._turns(new[:1]), new)

    def _unseen(self, number: int) -> Sequence[Source]:
        return self.unseen[number * self.count : (number + 1) * self.count]

    def _turns(self, asked: Sequence[Source]) -> tuple[Turn, ...]:
        """Questions with the answers of the data set between them, the last one open."""
        out: list[Turn] = []
        for each in asked:
            answer = f"{self.begins} {each.answer}.".strip()
            out += [Turn("user", each.question), Turn("assistant", answer)]
        return tuple(out[:-1])

    def _prompt(
        self, key: str, workload: str, turns: tuple[Turn, ...], chosen: Sequence[Source]
    ) -> Prompt:
        documents = tuple(each.document for each in chosen)
        return Prompt(key, workload, turns, documents, self.encode(turns, documents))


def reordered(chosen: Sequence[Source], rng: random.Random) -> list[Source]:
    """Another order, with another document at the first place."""
    out = list(chosen)
    while out[0] == chosen[0]:
        rng.shuffle(out)
    return out
