"""Training and evaluation sequences in exactly the serving format.

One row holds  S | context | Q_1 A_1 | Q_2 A_2 | ...  The context is tokenised once and cut into
chunks of a fixed size by ids, so chunks cut sentences. Each question sees S, the context and
itself, never another question, and its positions start right behind the context: every question
of a row is the *first* question of a request, so one context serves many questions at no cost in
fidelity.

    tokens     S S C1 C1 C1 C2 C2 Q1 Q1 Q1 Q2 Q2
    segments   0 0 1  1  1  2  2  64 64 64 65 65
    positions  0 1 2  3  4  5  6  7  8  9  7  8
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.guide_layers import ANSWER_LAYER, COPY_LAYERS, HINT_LAYERS
from demo.tasks import Asked, Story, chunks
from demo.vocabulary import BOS_ID, EOS_ID, PAD_ID, QUESTION, SYSTEM

FIRST_QUESTION = 64
"""Segment ids below are the system prompt (0) and chunks, from here on questions."""
PADDING = -1
COPY = "copy"
"""Task name of rows that only repeat random tokens."""
FIRST_WORD = 3 + 256
"""Ids below are special tokens and bytes."""
CHUNK_TOKENS = 48
FIRST_TOKEN_WEIGHT = 2.0
LANGUAGE_WEIGHT = 0.2
LANGUAGE_SHARE = 1 / 3
"""Weight and share of context tokens with a language-model loss."""


class View(Enum):
    """What a chunk of the context sees; questions always see everything."""

    FULL = "full"
    """All before it: full prefill."""
    SYSTEM = "pie behind the system prompt"
    """S and itself: the context of a chunk precomputed behind the system prompt."""
    BARE = "pie"
    """Itself only: the context of a chunk precomputed bare."""


@dataclass
class Row:
    """One sequence under construction; all lists have one entry per token."""

    task: str
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Weight of the loss on *this* token when it is predicted from the one before."""
    first: list[bool] = field(default_factory=list)
    """Whether this token is the first of a scored answer."""
    hints: list[tuple[int, int, int]] = field(default_factory=list)
    """(depth, place, token to be known there): see `demo.tasks.story.Hint`."""
    links: list[tuple[int, int, int]] = field(default_factory=list)
    """(layer, place, place it is to look at): see `demo.guide`."""

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
    ids: list[int], answer: list[int], places: list[int]
) -> list[tuple[int, int, int]]:
    """(layer, index of the answer token, place of the context that gives it).

    One place: it gives the first token; where the whole answer ends there, each token its own.
    Several places: each gives one of the values, which commas part.
    """
    if len(places) != 1:
        return [(ANSWER_LAYER, 2 * index, place) for index, place in enumerate(places)]
    (end,) = places
    start = end + 1 - len(answer)
    if ids[start : end + 1] != answer:
        return [(ANSWER_LAYER, 0, end)]
    rest = range(1, len(answer))
    copied = [(layer, index, start + index) for index in rest for layer in COPY_LAYERS]
    return [(ANSWER_LAYER, 0, start), *copied]


@dataclass(frozen=True)
class Batch:
    """Tensors `[rows, tokens]` of one pass, and the additive mask `[rows, 1, tokens, tokens]`."""

    tasks: list[str]
    ids: Tensor
    positions: Tensor
    segments: Tensor
    weights: Tensor
    first: Tensor
    mask: Tensor
    hints: Tensor
    """`[hints, 4]`: row, depth, place, token."""
    links: Tensor
    """`[links, 4]`: row, layer, place, place it is to look at."""


class Packer:
    """Packs stories into rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size()
        self._system = [BOS_ID, *self._encode(SYSTEM)]

    def row(self, rng: random.Random, task: str, story: Story, asked: list[Asked]) -> Row:
        row = Row(task)
        row.add(self._system, 0, 0, [0.0] * len(self._system))
        for segment, ids in enumerate(chunks(self._tokenizer, story.context, CHUNK_TOKENS), 1):
            weights = [LANGUAGE_WEIGHT * (rng.random() < LANGUAGE_SHARE) for _ in ids]
            row.add(ids, segment, len(row.ids), weights)
        end = len(row.ids)
        ends = self._ends(story.context)
        place = {text: ends[text_end(story.context, text)] for text in texts(story)}
        for hint in story.hints:
            token = self._encode(" " + hint.tells)[0]
            row.hints.append((hint.depth, place[hint.at], token))
            row.links.append((HINT_LAYERS[hint.depth], place[hint.at], place[hint.source]))
        for segment, each in enumerate(asked, FIRST_QUESTION):
            prompt = self._encode(QUESTION.format(question=each.question))
            answer = [*self._encode(" " + each.answer), EOS_ID]
            row.add(prompt, segment, end, [0.0] * len(prompt))
            row.add(answer, segment, end + len(prompt), [1.0] * len(answer))
            row.weights[-len(answer)] = FIRST_TOKEN_WEIGHT
            row.first[-len(answer)] = each.scored
            begin = len(row.ids) - len(answer) - 1
            sources = answer_sources(row.ids, answer[:-1], [place[text] for text in each.where])
            row.links += [(layer, begin + index, key) for layer, index, key in sources]
        return row

    def copy_row(self, rng: random.Random, tokens: int) -> Row:
        """Random tokens in short runs, and the same runs in another order: pure induction."""
        row = Row(COPY)
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


def collate(rows: list[Row], view: View = View.FULL) -> Batch:
    """Pads rows to the longest and builds who may see whom."""
    length = max(len(row.ids) for row in rows)

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([v + [fill] * (length - len(v)) for v in values])

    segments = padded([row.segments for row in rows], PADDING)
    weights = [row.weights + [0.0] * (length - len(row.ids)) for row in rows]
    return Batch(
        tasks=[row.task for row in rows],
        ids=padded([row.ids for row in rows], PAD_ID),
        positions=padded([row.positions for row in rows], 0),
        segments=segments,
        weights=torch.tensor(weights, dtype=torch.float32),
        first=padded([[int(f) for f in row.first] for row in rows], 0).bool(),
        mask=attention_mask(segments, view),
        hints=_stack([row.hints for row in rows]),
        links=_stack([row.links for row in rows]),
    )


def _stack(lists: list[list[tuple[int, int, int]]]) -> Tensor:
    """`[entries, 4]`: every entry behind the index of its row."""
    entries = [(row, *entry) for row, found in enumerate(lists) for entry in found]
    return torch.tensor(entries, dtype=torch.long).view(-1, 4)


def attention_mask(segments: Tensor, view: View) -> Tensor:
    """Additive mask `[rows, 1, tokens, tokens]` from segment ids `[rows, tokens]`."""
    length = segments.shape[1]
    query, key = segments[:, :, None], segments[:, None, :]
    own = key == query
    asks = query >= FIRST_QUESTION
    if view is View.FULL:
        visible = own | (key < FIRST_QUESTION)
    elif view is View.SYSTEM:
        visible = own | (key == 0) | (asks & (key < FIRST_QUESTION))
    else:
        visible = own | (asks & (key < FIRST_QUESTION))
    visible &= torch.ones(length, length, dtype=torch.bool).tril()
    # Causality already keeps rows from everything behind them, padding included.
    return torch.zeros(visible.shape).masked_fill_(~visible, -1e9)[:, None]
