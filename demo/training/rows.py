"""Training and evaluation sequences in exactly the serving format.

One row holds  S | context | Q_1 A_1 | Q_2 A_2 | ...  where S is the system prompt. The context is
tokenised once, and its ids are cut into chunks of a fixed size, so chunks cut sentences. Each
question sees S, the context and itself, and no other question, and its positions begin right after
the context. To the model every question is therefore the only one of a request, and one context
serves many questions.

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
"""Segment 0 is the system prompt, lower numbers are chunks, and from here on questions."""
FIRST_WORD = 3 + 256
"""Lower token ids are special tokens and bytes."""
TASK_CHUNK_TOKENS = 48
"""Chunk size in training and in the evaluation of tasks."""
FIRST_TOKEN_WEIGHT = 2.0
LANGUAGE_WEIGHT = 0.2
LANGUAGE_SHARE = 1 / 3
"""Weight of the language-model loss on context tokens, and share of the tokens that have it."""


@dataclass(frozen=True)
class Part:
    """A story of a task, and those of its questions that are asked."""

    task: str
    story: Story
    asked: list[Asked]


@dataclass
class Row:
    """One sequence under construction; lists have one entry per token unless it says otherwise.

    Attributes:
        tasks: Task of each question, in order.
        weights: Weight of the loss on this token when it is predicted from the one before.
        first: Whether this token is the first of a scored answer.
        hints: Depth, place, and token that should be known there; see
            `demo.language.tasks.story.Hint`.
        links: Layer, place, and place that it should attend to; see `demo.training.guide`.
    """

    tasks: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    hints: list[tuple[int, int, int]] = field(default_factory=list)
    links: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, ids: list[int], segment: int, start: int, weights: list[float]) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [segment] * len(ids)
        self.weights += weights
        self.first += [False] * len(ids)


def texts(story: Story) -> set[str]:
    """All texts of which the guide needs the place in the context."""
    found = {text for hint in story.hints for text in (hint.at, hint.source)}
    return found | {text for asked in story.asked for text in asked.where}


def text_end(context: str, text: str) -> int:
    return context.index(text) + len(text)


def answer_sources(
    ids: list[int], answer: list[int], places: list[int], comma: int
) -> list[tuple[int, int, int]]:
    """Finds the places of the context that give the tokens of an answer.

    If there is one place, it gives the whole answer. If there are several, each gives one part, and
    commas separate the parts. If a part ends at its place, each of its tokens is copied from there.
    If it stands earlier, its first token should be known at the place, and the others are copied.

    Args:
        ids: Token ids of the row.
        answer: Token ids of the answer.
        places: Indices into `ids`.
        comma: Token id of a comma.

    Returns:
        Layer, index of the answer token, and index of the context token, for every link.
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
    """Start of the last occurrence of `part` that ends before `end`."""
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
        """Number of tokens of a text."""
        return len(self._encode(text))

    def row(self, rng: random.Random, parts: list[Part]) -> Row:
        """Joins the stories of all parts to one context, and appends all their questions.

        Texts that stories refer to are searched in the whole context. That is right because stories
        of one row share no names (`demo.training.longer`).
        """
        row = Row([part.task for part in parts for _ in part.asked])
        context = "".join(part.story.context for part in parts)
        row.add(self._system, 0, 0, [0.0] * len(self._system))
        for segment, ids in enumerate(chunks(self._tokenizer, context, TASK_CHUNK_TOKENS), 1):
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
        """Random tokens in short runs, and then the same runs in another order: trains copying."""
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
        """Index in the row of the token that ends at each character of the context."""
        offsets = self._tokenizer.encode(context, add_special_tokens=False).offsets
        return {end: len(self._system) + index for index, (_, end) in enumerate(offsets)}

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
