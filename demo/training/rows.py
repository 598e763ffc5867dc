"""Training and evaluation sequences in exactly the serving format.

One row holds  S | context | Q_1 A_1 | Q_2 A_2 | ...  The context is tokenised once and cut into
chunks of a fixed size by ids, so chunks cut sentences. Each question sees S, the context and
itself, never another question, and its positions start right behind the context: every question
of a row is the *first* question of a request, so one context serves many questions at no cost in
fidelity.

    tokens     S S C1 C1 C1 C2 C2 Q1 Q1 Q1 Q2 Q2
    segments   0 0 1  1  1  2  2  F  F  F  F+1 F+1     F: FIRST_QUESTION
    positions  0 1 2  3  4  5  6  7  8  9  7  8
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from demo.language.tasks import Asked, Story, chunks
from demo.language.vocabulary import BOS_ID, EOS_ID, QUESTION, SYSTEM
from demo.training.guide_layers import ANSWER_LAYER, COPY_LAYERS, HINT_LAYERS

FIRST_QUESTION = 1024
"""Segment ids below are the system prompt (0) and chunks, from here on questions."""
FIRST_WORD = 3 + 256
"""Ids below are special tokens and bytes."""
CHUNK_TOKENS = 48
FIRST_TOKEN_WEIGHT = 2.0
LANGUAGE_WEIGHT = 0.2
LANGUAGE_SHARE = 1 / 3
"""Weight and share of context tokens with a language-model loss."""


@dataclass(frozen=True)
class Part:
    """A story of a task, and those of its questions that are put to it."""

    task: str
    story: Story
    asked: list[Asked]


@dataclass
class Row:
    """One sequence under construction; all lists have one entry per token."""

    tasks: list[str] = field(default_factory=list)
    """Task of each question, in order."""
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Weight of the loss on *this* token when it is predicted from the one before."""
    first: list[bool] = field(default_factory=list)
    """Whether this token is the first of a scored answer."""
    hints: list[tuple[int, int, int]] = field(default_factory=list)
    """(depth, place, token to be known there): see `demo.language.tasks.story.Hint`."""
    links: list[tuple[int, int, int]] = field(default_factory=list)
    """(layer, place, place it is to look at): see `demo.training.guide`."""

    def add(self, ids: list[int], segment: int, start: int, weights: list[float]) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [segment] * len(ids)
        self.weights += weights
        self.first += [False] * len(ids)


def texts(story: Story) -> set[str]:
    """Every text whose place the guide needs."""
    found = {text for hint in story.hints for text in (hint.at, hint.source)}
    return found | {text for asked in story.asked for text in asked.where}


def text_end(context: str, text: str) -> int:
    return context.index(text) + len(text)


def answer_sources(
    ids: list[int], answer: list[int], places: list[int], comma: int
) -> list[tuple[int, int, int]]:
    """(layer, index of the answer token, place of the context that gives it).

    One place gives the whole answer, several give one part each, which commas part. A part that
    ends at its place is had token by token; of one that stands before it, the first token is to
    be known at the place and the others are copied.
    """
    parts = [(0, answer)]
    if len(places) > 1:
        borders = [index for index, token in enumerate(answer) if token == comma]
        starts = [0, *(index + 1 for index in borders)]
        ends = [*borders, len(answer)]
        parts = [(a, answer[a:b]) for a, b in zip(starts, ends, strict=True)]
    links = []
    for (index, part), end in zip(parts, places, strict=True) if places else ():
        start = _last_before(ids, part, end + 1)
        whole = start is not None and start + len(part) == end + 1
        links.append((ANSWER_LAYER, index, start if whole and start is not None else end))
        if start is not None:
            rest = range(1, len(part))
            links += [(layer, index + i, start + i) for i in rest for layer in COPY_LAYERS]
    return links


def _last_before(ids: list[int], part: list[int], end: int) -> int | None:
    """Where `part` last begins so that it ends before `end`."""
    places = range(end - len(part), -1, -1)
    return next((i for i in places if ids[i : i + len(part)] == part), None)


class Packer:
    """Packs stories into rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size()
        self._system = [BOS_ID, *self._encode(SYSTEM)]
        (self._comma,) = self._encode(",")

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._encode(text))

    def row(self, rng: random.Random, parts: list[Part]) -> Row:
        """The stories of all parts as one context, and all their questions.

        Texts that stories refer to are looked for in the whole context: stories of one row share
        no names (see `demo.training.longer`).
        """
        row = Row([part.task for part in parts for _ in part.asked])
        context = "".join(part.story.context for part in parts)
        row.add(self._system, 0, 0, [0.0] * len(self._system))
        for segment, ids in enumerate(chunks(self._tokenizer, context, CHUNK_TOKENS), 1):
            weights = [LANGUAGE_WEIGHT * (rng.random() < LANGUAGE_SHARE) for _ in ids]
            row.add(ids, segment, len(row.ids), weights)
        end = len(row.ids)
        ends = self._ends(context)
        wanted = {text for part in parts for text in texts(part.story)}
        place = {text: ends[text_end(context, text)] for text in wanted}
        for hint in (hint for part in parts for hint in part.story.hints):
            token = self._encode(" " + hint.tells)[0]
            row.hints.append((hint.depth, place[hint.at], token))
            row.links.append((HINT_LAYERS[hint.depth], place[hint.at], place[hint.source]))
        every = [each for part in parts for each in part.asked]
        for segment, each in enumerate(every, FIRST_QUESTION):
            prompt = self._encode(QUESTION.format(question=each.question))
            answer = [*self._encode(" " + each.answer), EOS_ID]
            row.add(prompt, segment, end, [0.0] * len(prompt))
            row.add(answer, segment, end + len(prompt), [1.0] * len(answer))
            row.weights[-len(answer)] = FIRST_TOKEN_WEIGHT
            row.first[-len(answer)] = each.scored
            begin = len(row.ids) - len(answer) - 1
            sources = answer_sources(
                row.ids, answer[:-1], [place[text] for text in each.where], self._comma
            )
            row.links += [(layer, begin + index, key) for layer, index, key in sources]
        return row

    def copy_row(self, rng: random.Random, tokens: int) -> Row:
        """Random tokens in short runs, and the same runs in another order: pure induction."""
        row = Row()
        row.add([BOS_ID], 0, 0, [0.0])
        runs: list[list[int]] = []
        while sum(map(len, runs)) < tokens // 2:
            length = rng.randint(2, 7)
            runs.append([rng.randrange(FIRST_WORD, self._vocabulary) for _ in range(length)])
        starts = []
        for run in runs:
            starts.append(len(row.ids))
            row.add(run, 0, len(row.ids), [0.0] * len(run))
        for which in rng.sample(range(len(runs)), len(runs)):
            run, start, begin = runs[which], starts[which], len(row.ids)
            row.add(run, 0, begin, [0.0] + [1.0] * (len(run) - 1))
            pairs = range(len(run) - 1)
            row.links += [(layer, begin + i, start + i + 1) for i in pairs for layer in COPY_LAYERS]
        return row

    def _ends(self, context: str) -> dict[int, int]:
        """Place in the row of the token that ends at each character of the context."""
        offsets = self._tokenizer.encode(context, add_special_tokens=False).offsets
        return {end: len(self._system) + index for index, (_, end) in enumerate(offsets)}

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
