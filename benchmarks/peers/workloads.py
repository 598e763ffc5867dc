"""The workloads, in rounds: one round asks a prompt of every chosen kind.

    shuffled       documents drawn from the corpus by popularity (Zipf), in a shuffled order
    reordered      the documents of the prompt before, in another order, with another question
    conversation   the prompt before, its answer, and a further question; twice
    repeated       the prompt before, token for token
    new            documents that nobody has seen
    changing       a conversation of six turns that finds three other documents at every turn; its
                   first turn has a row of its own
    reuse          five prompts, of whose documents a rising share is from the corpus

`reordered` leaves the first document nowhere near its place, so that a prefix cache is left with
the system prompt. Everything depends on the seed alone, and every server gets the same rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from benchmarks.peers.prompts import Prompt
from benchmarks.quality.tasks.natural_questions import Asked
from kvstitch.service.prompt import Turn
from loadtest.traffic.routes import CorpusDocument
from loadtest.traffic.workloads import draw

SHUFFLED, REORDERED, CONVERSATION = "shuffled", "reordered", "conversation"
REPEATED, NEW = "repeated", "new"
CHANGING, CHANGING_FIRST = "changing conversation", "changing conversation, first turn"
REUSE = {f"reuse {share:g}": share for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
"""Workloads by the share of their documents that is from the corpus."""
WORKLOADS = {
    SHUFFLED: "documents repeat (Zipf), shuffled",
    REORDERED: "the same documents in a new order",
    CONVERSATION: "a conversation grows over the same documents",
    REPEATED: "the identical prompt again",
    NEW: "all documents are new",
    CHANGING: "turns 2 to 6 of a conversation, three documents new at each",
    CHANGING_FIRST: "the first turn of such a conversation",
    **{name: f"{share:.0%} of the documents are known" for name, share in REUSE.items()},
}
TURNS, NEW_EACH_TURN = 6, 3
ANSWER_WORDS = 40
"""Words of the passage that follow an answer of the data set in a changing conversation: about 60
tokens in all."""
USUAL = (SHUFFLED, REORDERED, CONVERSATION, REPEATED, NEW)
"""What is asked unless something else is chosen."""

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
        unseen: documents for `new`, `reuse` and for warming up; each is used once.
        count: documents of a prompt, if they fit.
        encode: turns and documents to token ids.
        alpha: of the Zipf law: the document of rank i has the weight 1 / i^alpha.
        begins: the words that begin every answer, as in the prompts.
        workloads: which prompts of a round are asked.
        room: longest prompt in tokens; documents that do not fit are left out.
    """

    corpus: Sequence[Source]
    unseen: Sequence[Source]
    count: int
    encode: Encode
    alpha: float = 1.0
    begins: str = ""
    workloads: Sequence[str] = field(default=USUAL, kw_only=True)
    room: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 4 <= self.count <= len(self.corpus):
            raise ValueError(f"a prompt needs 4 to {len(self.corpus)} documents, not {self.count}")

    def warm_up(self) -> list[Prompt]:
        """Two prompts for every server before the first round: new documents, and then again."""
        prompt = self._about("warm-up", NEW, self.unseen[: self.count])
        return [prompt, prompt]

    def made(self, seed: int) -> Iterator[list[Prompt]]:
        """Rounds, until there are no unseen documents left."""
        rng = random.Random(f"peers {seed}")
        weights = [1 / rank**self.alpha for rank in range(1, len(self.corpus) + 1)]
        ranked = rng.sample(self.corpus, len(self.corpus))
        fresh = {NEW: self.count} | {name: self.count - self._known(name) for name in REUSE}
        used = sum(fresh[name] for name in self.workloads if name in fresh)
        for number in count(1):
            first = self.count + (number - 1) * used
            if first + used > len(self.unseen):
                return
            unseen = iter(self.unseen[first : first + used])
            chosen = self._drawn(ranked, weights, self.count, rng)
            prompts = [
                prompt
                for prompt in self._growing(number, chosen, rng)
                if prompt.workload in self.workloads
            ]
            if NEW in self.workloads:
                prompts.append(self._about(f"{number} f", NEW, list(islice(unseen, self.count))))
            if CHANGING in self.workloads:
                prompts += self._changing(number, ranked, weights, rng)
            for name in (name for name in REUSE if name in self.workloads):
                mixed = self._drawn(ranked, weights, self._known(name), rng)
                mixed += islice(unseen, fresh[name])
                rng.shuffle(mixed)
                prompts.append(self._about(f"{number} {name}", name, mixed))
            yield prompts

    def _growing(self, number: int, chosen: list[Source], rng: random.Random) -> Iterator[Prompt]:
        """Prompts over the same documents: shuffled, reordered, two further turns, repeated."""
        asked = rng.sample(chosen, 4)
        for turns in (self._turns(asked[:1]), self._turns(asked[1 : self._most_asked])):
            chosen = self._fitting(chosen, turns, asked)
        yield self._prompt(f"{number} a", SHUFFLED, self._turns(asked[:1]), chosen)
        other = reordered(chosen, rng)
        for letter, last in zip("bcd", (2, 3, 4), strict=True):
            workload = REORDERED if letter == "b" else CONVERSATION
            yield (prompt := self._prompt(
                f"{number} {letter}", workload, self._turns(asked[1:last]), other
            ))  # fmt: skip
        again = (prompt.turns, prompt.documents, prompt.ids)
        yield Prompt(f"{number} e", REPEATED, *again)

    def _changing(
        self, number: int, ranked: list[Source], weights: list[float], rng: random.Random
    ) -> Iterator[Prompt]:
        """A conversation in which every turn asks about one of the documents that it has found."""
        turns: list[Turn] = []
        shown: list[Source] = []
        for turn in range(1, TURNS + 1):
            others = [place for place, each in enumerate(ranked) if each not in shown]
            wanted = NEW_EACH_TURN if shown else self.count
            drawn = draw(rng, [weights[place] for place in others], wanted)
            found = [ranked[others[place]] for place in drawn]
            shown = [*found, *rng.sample(shown, self.count - wanted if shown else 0)]
            rng.shuffle(shown)
            topic = found[0]
            turns.append(Turn("user", topic.question))
            asked = tuple(turns)
            workload = CHANGING if turn > 1 else CHANGING_FIRST
            yield self._prompt(
                f"{number} turn {turn}", workload, asked, self._fitting(shown, asked, [topic])
            )
            words = topic.document.text.split()[:ANSWER_WORDS]
            answer = f"{self.begins} {topic.answer}. {' '.join(words)}".strip()
            turns.append(Turn("assistant", answer))

    def _about(self, key: str, workload: str, chosen: Sequence[Source]) -> Prompt:
        """A prompt with a question about its first document."""
        turns = self._turns(chosen[:1])
        return self._prompt(key, workload, turns, self._fitting(chosen, turns, chosen[:1]))

    def _fitting(
        self, chosen: Sequence[Source], turns: tuple[Turn, ...], asked: Sequence[Source]
    ) -> list[Source]:
        """Without the last documents if the prompt would be too long; those asked about stay."""
        out = list(chosen)
        spare = [source for source in out if source not in asked]
        while self.room is not None and len(self._ids(turns, out)) > self.room:
            if not spare:
                raise ValueError(f"not even the documents asked about fit into {self.room} tokens")
            out.remove(spare.pop())
        return out

    @property
    def _most_asked(self) -> int:
        """Where the questions of the longest prompt that is asked end."""
        longest = {CONVERSATION, REPEATED} & set(self.workloads)
        return 4 if longest else 2

    def _known(self, name: str) -> int:
        return round(REUSE[name] * self.count)

    @staticmethod
    def _drawn(
        ranked: Sequence[Source], weights: Sequence[float], number: int, rng: random.Random
    ) -> list[Source]:
        chosen = [ranked[place] for place in draw(rng, weights, number)]
        rng.shuffle(chosen)
        return chosen

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
        return Prompt(key, workload, turns, documents, self._ids(turns, chosen))

    def _ids(self, turns: tuple[Turn, ...], chosen: Sequence[Source]) -> tuple[int, ...]:
        return self.encode(turns, [each.document for each in chosen])


def reordered(chosen: Sequence[Source], rng: random.Random) -> list[Source]:
    """Another order, with another document at the first place."""
    out = list(chosen)
    while out[0] == chosen[0]:
        rng.shuffle(out)
    return out
