"""Training and evaluation sequences in exactly the serving format.

One row holds  S | D_1 .. D_k | Q_1 A_1 | Q_2 A_2 | ...  where every segment is tokenised on its
own. Each question sees S, the documents and itself, never another question, and its positions
start right behind the documents: every question of a row is the *first* question of a request,
so one set of documents serves many questions at no cost in fidelity.

    tokens     S S D1 D1 D1 D2 D2 Q1 Q1 Q1 Q2 Q2
    segments   0 0 1  1  1  2  2  64 64 64 65 65
    positions  0 1 2  3  4  5  6  7  8  9  7  8
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo import words
from demo.grammar import Document, ask, make_document, make_entity, open_names, state
from demo.kinds import KINDS
from demo.vocabulary import BOS_ID, DOCUMENT, EOS_ID, PAD_ID, QUESTION, SYSTEM

FIRST_QUESTION = 64
"""Segment ids below are the system prompt (0) and documents, from here on questions."""
PADDING = -1
FIRST_TOKEN_WEIGHT = 2.0
LANGUAGE_WEIGHT = 0.3
LANGUAGE_SHARE = 1 / 3
LOOKALIKE_SHARE = 0.3


@dataclass(frozen=True)
class Mix:
    """What the rows of one batch look like."""

    documents: int
    facts: tuple[int, int]
    questions: int
    recap_share: float = 0.0
    block_mask_share: float = 0.0
    held_out: bool = False


@dataclass
class Row:
    """One sequence under construction; all lists have one entry per token."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Weight of the loss on *this* token when it is predicted from the one before."""
    first: list[bool] = field(default_factory=list)
    """Whether this token is the first of an answer to a question."""
    block_masked: bool = False

    def add(self, ids: list[int], segment: int, start: int, weights: list[float]) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [segment] * len(ids)
        self.weights += weights
        self.first += [False] * len(ids)


@dataclass(frozen=True)
class Batch:
    """Tensors `[rows, tokens]` of one step, and the additive mask `[rows, 1, tokens, tokens]`."""

    ids: Tensor
    positions: Tensor
    segments: Tensor
    weights: Tensor
    first: Tensor
    mask: Tensor


class Sampler:
    """Draws rows from the grammar; the caller's `Random` makes every batch reproducible."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._system = [BOS_ID, *self._encode(SYSTEM)]
        self._names = {side: open_names(side) for side in (False, True)}

    def batch(self, rng: random.Random, mix: Mix, rows: int, dtype: torch.dtype) -> Batch:
        return collate([self.row(rng, mix) for _ in range(rows)], dtype)

    def table_batch(self, rng: random.Random, rows: int, pairs: int, dtype: torch.dtype) -> Batch:
        """Bootstrap rows: a table of names and words, looked up again in another order."""
        return collate([self._table_row(rng, pairs) for _ in range(rows)], dtype)

    def row(self, rng: random.Random, mix: Mix) -> Row:
        documents = self._documents(rng, mix)
        row = Row(block_masked=rng.random() < mix.block_mask_share)
        row.add(self._system, 0, 0, [0.0] * len(self._system))
        for segment, document in enumerate(documents, start=1):
            ids = self._encode(DOCUMENT.format(title=document.title, text=document.text))
            weights = [LANGUAGE_WEIGHT * (rng.random() < LANGUAGE_SHARE) for _ in ids]
            weights[0] = 0.0
            row.add(ids, segment, len(row.ids), weights)
        end = len(row.ids)
        facts = [fact for document in documents for fact in document.facts]
        chosen = rng.sample(facts, min(mix.questions, len(facts)))
        for segment, fact in enumerate(chosen, start=FIRST_QUESTION):
            if rng.random() < mix.recap_share:
                lead, tail = state(rng, fact, first=True).rsplit(" " + fact.value, 1)
                prompt = self._encode(lead)
                answer = self._encode(" " + fact.value) + self._encode(tail)
            else:
                prompt = self._encode(QUESTION.format(question=ask(rng, fact)))
                answer = [*self._encode(" " + fact.value), EOS_ID]
            row.add(prompt, segment, end, [0.0] * len(prompt))
            begin = len(row.ids)
            weights = [FIRST_TOKEN_WEIGHT] + [1.0] * (len(answer) - 1)
            row.add(answer, segment, end + len(prompt), weights)
            row.first[begin] = True
        return row

    def _documents(self, rng: random.Random, mix: Mix) -> list[Document]:
        """Mostly of one kind, so that every attribute asked for has rivals in the context."""
        kind = rng.choice(list(KINDS))
        kinds = [
            kind if rng.random() < 0.85 else rng.choice(list(KINDS)) for _ in range(mix.documents)
        ]
        names = self._draw_names(rng, mix.documents, mix.held_out)
        return [
            make_document(rng, make_entity(rng, kind, name), rng.randint(*mix.facts))
            for kind, name in zip(kinds, names, strict=True)
        ]

    def _draw_names(self, rng: random.Random, count: int, held_out: bool) -> list[str]:
        pool = self._names[held_out]
        if rng.random() < LOOKALIKE_SHARE:
            syllable = rng.choice(words.SYLLABLES_FIRST + words.SYLLABLES_LAST)
            alike = [n for n in pool if n.startswith(syllable) or n.endswith(syllable)]
            if len(alike) >= count:
                pool = alike
        return rng.sample(pool, count)

    def _table_row(self, rng: random.Random, pairs: int) -> Row:
        names = self._draw_names(rng, pairs, held_out=False)
        entries = [
            (self._encode(" " + n), self._encode(" " + rng.choice(words.CLOSED))) for n in names
        ]
        row = Row()
        row.add([BOS_ID], 0, 0, [0.0])
        for learn in (False, True):
            for name, value in rng.sample(entries, len(entries)):
                row.add(name, 0, len(row.ids), [0.0] * len(name))
                row.add(value, 0, len(row.ids), [float(learn)] * len(value))
        return row

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def collate(rows: list[Row], dtype: torch.dtype) -> Batch:
    """Pads rows to the longest and builds who may see whom."""
    length = max(len(row.ids) for row in rows)

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([v + [fill] * (length - len(v)) for v in values])

    segments = padded([row.segments for row in rows], PADDING)
    blocked = torch.tensor([row.block_masked for row in rows])
    weights = [row.weights + [0.0] * (length - len(row.ids)) for row in rows]
    return Batch(
        ids=padded([row.ids for row in rows], PAD_ID),
        positions=padded([row.positions for row in rows], 0),
        segments=segments,
        weights=torch.tensor(weights, dtype=torch.float32),
        first=padded([[int(f) for f in row.first] for row in rows], 0).bool(),
        mask=attention_mask(segments, blocked, dtype),
    )


def attention_mask(segments: Tensor, blocked: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask `[rows, 1, tokens, tokens]` from segment ids `[rows, tokens]`.

    `blocked` `[rows]` marks rows in which a document sees S and itself only: the context a
    reused chunk was computed in (PIE), without its residual error in position.
    """
    length = segments.shape[1]
    query, key = segments[:, :, None], segments[:, None, :]
    key_is_document = (key > 0) & (key < FIRST_QUESTION)
    query_sees_documents = (query >= FIRST_QUESTION) | ~blocked[:, None, None]
    visible = (key == 0) | (key == query) | (key_is_document & query_sees_documents)
    visible &= torch.ones(length, length, dtype=torch.bool).tril()
    # Causality already keeps documents from later ones and everything from padding.
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -1e9)
    return mask[:, None]
