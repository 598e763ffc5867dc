"""The segments of a prompt as index ranges over its token ids.

A prompt is the system segment S, then the documents D_1 .. D_k, then the question Q:

0        |S|            |S|+|D_1|                      n-|Q|        n
├── S ──┤├──── D_1 ────┤├──── D_2 ────┤ …  ├─── D_k ───┤├─── Q ───┤

Earlier turns of a conversation stand between D_k and Q. They are segments like documents, the last
ones: what an earlier prompt has left, and the rest of them, which is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device | None) -> Tensor:
    """Return a tensor on the device; None, or one that is not in host memory: x itself."""
    if device is None or device.type == "cpu" or x.device.type != "cpu":
        return x
    return x.pin_memory().to(device, non_blocking=True)


class Prefix(NamedTuple):
    """The tokens that a document was precomputed behind."""

    ids: Sequence[int] = ()
    exact: bool = True


@dataclass(frozen=True)
class Segment:
    """One segment whose KV can be stored: S, a document, or earlier turns."""

    start: int
    end: int
    offset: int = 0
    uncached: bool = False
    exact: bool = False
    ranking_only: bool = False

    @property
    def computed(self) -> bool:
        """Whether all its rows are computed, whatever the method says."""
        return self.uncached or self.ranking_only

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PromptLayout:
    """A prompt of n tokens.

    Sets of rows are made once, in host memory, and never changed. What they are is known there
    without asking the device.
    """

    ids: Tensor  # token ids `[n]` int64
    segments: tuple[Segment, ...]  # S first, then the documents in order, then earlier turns
    question_start: int  # the first row of Q
    history: int = 0  # how many of the segments, the last ones, are earlier turns
    _on_host: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _made: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        system: Sequence[int],
        documents: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        uncached: Sequence[bool],
        prefixes: Sequence[Prefix] = (),
        history: int = 0,
        ranking_only: Collection[int] = (),
        device: torch.device | None = None,
    ) -> PromptLayout:
        """Place the segments one after another. `uncached` says of S and of every document
        whether its rows must be computed; of documents numbered in `ranking_only`, from 0,
        stored KV serves passes alone; the last `history` ones are earlier turns."""
        ids = list(system)
        segments = [Segment(0, len(system), 0, uncached[0], exact=True)]
        given = prefixes or [Prefix()] * len(documents)
        for number, (document, is_uncached, prefix) in enumerate(
            zip(documents, uncached[1:], given, strict=True)
        ):
            start, offset = len(ids), len(prefix.ids)
            exact = prefix.exact and offset == start and list(prefix.ids) == ids
            ids.extend(document)
            segments.append(
                Segment(start, len(ids), offset, is_uncached, exact, number in ranking_only)
            )
        start = len(ids)
        ids.extend(question)
        tokens = torch.tensor(ids, dtype=torch.long)
        there = to_device(tokens, device)
        layout = cls(there, tuple(segments), start, history)
        if there is not tokens:
            layout._on_host[id(there)] = there, tokens
        return layout

    @cached_property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def documents(self) -> tuple[Segment, ...]:
        """The documents, and behind them earlier turns, which methods treat alike."""
        return self.segments[1:]

    @property
    def history_start(self) -> int:
        """The first row of earlier turns; that of Q if there are none."""
        return self.segments[-self.history].start if self.history else self.question_start

    @cached_property
    def question_rows(self) -> Tensor:
        return self.on_device(torch.arange(self.question_start, self.tokens))

    @cached_property
    def all_rows(self) -> Tensor:
        return self.on_device(torch.arange(self.tokens))

    @cached_property
    def forced_rows(self) -> Tensor:
        """Rows that every method computes at every layer: of `computed` segments, and the
        question."""
        computed = [s for s in self.segments if s.computed]
        return self._rows(computed, question=True) if computed else self.question_rows

    @cached_property
    def cached_document_rows(self) -> Tensor:
        """Document rows whose KV came from the store: the candidates for recomputation."""
        return self._rows(s for s in self.documents if not s.computed)

    @property
    def stale_documents(self) -> tuple[Segment, ...]:
        """Cached documents whose KV can differ from that of a full prefill."""
        return tuple(s for s in self.documents if s.tokens and not s.computed and not s.exact)

    @cached_property
    def stale_document_rows(self) -> Tensor:
        """Rows of `stale_documents`: the only cached ones that recomputing can change."""
        return self._rows(self.stale_documents)

    @cached_property
    def cached_rows(self) -> Tensor:
        """Every row except those of uncached segments, ascending."""
        return self._rows((s for s in self.segments if not s.uncached), question=True)

    def to(self, device: torch.device | str) -> PromptLayout:
        return replace(self, ids=self.ids.to(device))

    def count_rows(self, rows: Tensor) -> list[int]:
        """Return how many of the rows, ascending `[m]`, each segment has."""
        starts = [segment.start for segment in self.segments]
        borders = torch.tensor([*starts, *(segment.end for segment in self.segments)])
        before = torch.searchsorted(self.on_host(rows), borders).tolist()
        return [
            end - start
            for start, end in zip(before[: len(starts)], before[len(starts) :], strict=True)
        ]

    def only(self, rows: Tensor) -> PromptLayout:
        """Return a prompt of only these rows (ascending); no segment of it is cached."""
        segments, at = [], 0
        for segment in self.segments:
            inside = int(((rows >= segment.start) & (rows < segment.end)).sum())
            segments.append(Segment(at, at + inside, uncached=True))
            at += inside
        return PromptLayout(self.ids[rows], tuple(segments), at, self.history)

    def union(self, *rows: Tensor) -> Tensor:
        """Return the ascending union of row sets, each ascending; known in host memory."""
        for each in rows:
            if len(each) == self.tokens or all(other is each for other in rows):
                return each
        return self.on_device(union(*map(self.on_host, rows)))

    def on_device(self, rows: Tensor) -> Tensor:
        """Return rows that are in host memory where the prompt is; `on_host` knows them."""
        there = to_device(rows, self.ids.device)
        if there is not rows:
            self._on_host[id(there)] = there, rows
        return there

    def on_host(self, rows: Tensor) -> Tensor:
        """Return rows in host memory. It waits for the device only for those chosen there, once."""
        if rows.device.type == "cpu":
            return rows
        known = self._on_host.get(id(rows))
        if known is None or known[0] is not rows:
            known = self._on_host[id(rows)] = rows, rows.cpu()
        return known[1]

    def last_of(self, rows: Tensor) -> Tensor:
        """Return the last of some rows `[1]`; `on_host` knows it."""
        last = rows[-1:]
        if last.device.type != "cpu":
            self._on_host[id(last)] = last, self.on_host(rows)[-1:]
        return last

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` returned first for this prompt under this name, on the device."""
        if name not in self._made:
            self._made[name] = to_device(make(), self.ids.device)
        return self._made[name]

    def _rows(self, segments: Iterable[Segment], *, question: bool = False) -> Tensor:
        """Return the rows of some segments, in order, and of the question."""
        asked = [(self.question_start, self.tokens)] if question else []
        spans: list[tuple[int, int]] = []
        for start, end in [*((s.start, s.end) for s in segments), *asked]:
            if spans and spans[-1][1] == start:  # neighbours are made at once
                start, _ = spans.pop()
            spans.append((start, end))
        parts = [torch.arange(start, end) for start, end in spans]
        return self.on_device(torch.cat(parts) if parts else torch.empty(0, dtype=torch.long))


def union(*rows: Tensor) -> Tensor:
    """Return the ascending union of row sets."""
    merged: Tensor = torch.unique(torch.cat(rows), sorted=True)
    return merged
