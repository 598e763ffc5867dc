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
    hints: list[tuple[int, int]] = field(default_factory=list)
    """(place in the row, token to be predicted behind it): see `demo.tasks.story.Hint`."""

    def add(self, ids: list[int], segment: int, start: int, weights: list[float]) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [segment] * len(ids)
        self.weights += weights
        self.first += [False] * len(ids)


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
    """`[hints, 3]`: row, place, token."""


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
        self._add_hints(row, story)
        for segment, each in enumerate(asked, FIRST_QUESTION):
            prompt = self._encode(QUESTION.format(question=each.question))
            answer = [*self._encode(" " + each.answer), EOS_ID]
            row.add(prompt, segment, end, [0.0] * len(prompt))
            row.add(answer, segment, end + len(prompt), [1.0] * len(answer))
            row.weights[-len(answer)] = FIRST_TOKEN_WEIGHT
            row.first[-len(answer)] = each.scored
        return row

    def copy_row(self, rng: random.Random, tokens: int) -> Row:
        """Random tokens in short runs, and the same runs in another order: pure induction."""
        row = Row(COPY)
        row.add([BOS_ID], 0, 0, [0.0])
        runs: list[list[int]] = []
        while sum(map(len, runs)) < tokens // 2:
            length = rng.randint(2, 7)
            runs.append([rng.randrange(FIRST_WORD, self._vocabulary) for _ in range(length)])
        for learnt, order in ((0.0, runs), (1.0, rng.sample(runs, len(runs)))):
            for run in order:
                row.add(run, 0, len(row.ids), [0.0] + [learnt] * (len(run) - 1))
        return row

    def _add_hints(self, row: Row, story: Story) -> None:
        encoded = self._tokenizer.encode(story.context, add_special_tokens=False)
        ends = {end: index for index, (_, end) in enumerate(encoded.offsets)}
        for hint in story.hints:
            end = story.context.index(hint.at) + len(hint.at)
            token = self._encode(" " + hint.tells)[0]
            row.hints.append((len(self._system) + ends[end], token))

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
        hints=torch.tensor(
            [(i, *hint) for i, row in enumerate(rows) for hint in row.hints], dtype=torch.long
        ).view(-1, 3),
    )


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
