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
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo import words
from demo.grammar import Document, Fact, ask, make_document, make_entity, open_names
from demo.kinds import KINDS
from demo.vocabulary import BOS_ID, DOCUMENT, EOS_ID, PAD_ID, QUESTION, SYSTEM

FIRST_QUESTION = 64
"""Segment ids below are the system prompt (0) and documents, from here on questions."""
REVERSE = "Who has {v}?"
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
    shared: int = 0
    """All documents draw their facts from this many relations (0: from all of their kind)."""
    question_weight: float = 0.0
    """Weight of the language-model loss on questions: their names can only be copied."""
    recap_share: float = 0.0
    reverse_share: float = 0.0
    """Share of questions that give the value and ask for the name. They make a value's position
    gather the name it belongs to, the half of a look-up that earns nothing by itself."""
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
    names: list[tuple[int, int, int]] = field(default_factory=list)
    """(position in the row, first and last token of the name that belongs there)."""
    links: list[tuple[int, int]] = field(default_factory=list)
    """(where an answer is predicted, where its value stands in a document)."""

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
    names: Tensor
    """`[values and answers, 4]`: row, position, first and last token of the open name."""
    links: Tensor
    """`[answers, 3]`: row, position that predicts the answer, position of the value."""


class Sampler:
    """Draws rows from the grammar; the caller's `Random` makes every batch reproducible."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._system = [BOS_ID, *self._encode(SYSTEM)]
        self._vocabulary = tokenizer.get_vocab_size()
        self._first_word = 3 + 256
        """Ids below are special tokens and bytes."""
        self._names = {side: open_names(side) for side in (False, True)}

    def batch(self, rng: random.Random, mix: Mix, rows: int, dtype: torch.dtype) -> Batch:
        return collate([self.row(rng, mix) for _ in range(rows)], dtype)

    def induction_batch(
        self, rng: random.Random, rows: int, tokens: int, dtype: torch.dtype
    ) -> Batch:
        """Bootstrap rows of about `tokens` tokens: runs of random words that come again."""
        return collate([self._segments_row(rng, tokens) for _ in range(rows)], dtype)

    def row(self, rng: random.Random, mix: Mix) -> Row:
        documents = self._documents(rng, mix)
        row = Row(block_masked=rng.random() < mix.block_mask_share)
        row.add(self._system, 0, 0, [0.0] * len(self._system))
        places: dict[Fact, int] = {}
        for segment, document in enumerate(documents, start=1):
            for place, fact in self._places(document):
                places[fact] = len(row.ids) + place
                row.names.append((places[fact], *self._name_ends(fact)))
            ids = self._encode(DOCUMENT.format(title=document.title, text=document.text))
            weights = [LANGUAGE_WEIGHT * (rng.random() < LANGUAGE_SHARE) for _ in ids]
            weights[0] = 0.0
            row.add(ids, segment, len(row.ids), weights)
        end = len(row.ids)
        stated = [pair for d in documents for pair in zip(d.facts, d.sentences, strict=True)]
        facts = [fact for fact, _ in stated]
        chosen = rng.sample(stated, min(mix.questions, len(stated)))
        for segment, (fact, sentence) in enumerate(chosen, start=FIRST_QUESTION):
            unique = sum(other.value == fact.value for other in facts) == 1
            tail = [EOS_ID]
            if rng.random() < mix.recap_share:
                lead, end_text = sentence.rsplit(" " + fact.value, 1)
                text, value, tail = lead, fact.value, self._encode(end_text)
            elif unique and rng.random() < mix.reverse_share:
                text = QUESTION.format(question=REVERSE.format(v=fact.value))
                value = fact.entity.name
            else:
                text, value = QUESTION.format(question=ask(rng, fact)), fact.value
            prompt, answer = self._encode(text), [*self._encode(" " + value), *tail]
            names_pay = [0.0] + [mix.question_weight] * (len(prompt) - 1)
            row.add(prompt, segment, end, names_pay)
            begin = len(row.ids)
            if value == fact.value:
                row.names.append((begin - 1, *self._name_ends(fact)))
                row.links.append((begin - 1, places[fact]))
            weights = [FIRST_TOKEN_WEIGHT] + [1.0] * (len(answer) - 1)
            row.add(answer, segment, end + len(prompt), weights)
            row.first[begin] = True
        return row

    def _places(self, document: Document) -> Iterator[tuple[int, Fact]]:
        """Where in the document's segment the value of each fact begins."""
        before = document.title + "\n"
        for fact, sentence in zip(document.facts, document.sentences, strict=True):
            yield len(self._encode(before + sentence.rsplit(" " + fact.value, 1)[0])), fact
            before += sentence + " "

    def _name_ends(self, fact: Fact) -> tuple[int, int]:
        ids = self._encode(" " + fact.entity.open_name)
        return ids[0], ids[-1]

    def _documents(self, rng: random.Random, mix: Mix) -> list[Document]:
        """Mostly of one kind, so that every attribute asked for has rivals in the context."""
        kind = rng.choice(list(KINDS))
        kinds = [
            kind if rng.random() < 0.85 else rng.choice(list(KINDS)) for _ in range(mix.documents)
        ]
        names = self._draw_names(rng, mix.documents, mix.held_out)
        pool = None
        if mix.shared:
            kinds = [kind] * mix.documents
            pool = tuple(rng.sample(KINDS[kind], mix.shared))
        return [
            make_document(rng, make_entity(rng, kind, name), rng.randint(*mix.facts), pool)
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

    def _segments_row(self, rng: random.Random, tokens: int) -> Row:
        """Random words in short runs, and the same runs in another order: pure induction.

        Runs and rows vary in length, so that a fixed distance back predicts nothing.
        """
        row = Row()
        row.add([BOS_ID], 0, 0, [0.0])
        runs: list[list[int]] = []
        while sum(map(len, runs)) < rng.randint(tokens // 4, tokens // 2):
            run = [
                rng.randrange(self._first_word, self._vocabulary) for _ in range(rng.randint(2, 6))
            ]
            runs.append(run)
        for learnt, order in ((0.0, runs), (1.0, rng.sample(runs, len(runs)))):
            for run in order:
                row.add(run, 0, len(row.ids), [0.0] + [learnt] * (len(run) - 1))
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
        names=torch.tensor(
            [(i, *name) for i, row in enumerate(rows) for name in row.names], dtype=torch.long
        ).view(-1, 4),
        links=torch.tensor(
            [(i, *link) for i, row in enumerate(rows) for link in row.links], dtype=torch.long
        ).view(-1, 3),
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
