"""The segments of a prompt as index ranges over its token ids.

A prompt is the system segment S, then the documents D_1 .. D_k, then the question Q:

0        |S|            |S|+|D_1|                      n-|Q|        n
├── S ──┤├──── D_1 ────┤├──── D_2 ────┤ …  ├─── D_k ───┤├─── Q ───┤

Earlier turns of a conversation stand between D_k and Q. They are segments like documents, the last
ones: what an earlier prompt has left, and the rest of them, which is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


class Prefix(NamedTuple):
    """The tokens that a document was precomputed behind.

    Attributes:
        exact: their own KV was that of a full prefill of them.
    """

    ids: Sequence[int] = ()
    exact: bool = True


@dataclass(frozen=True)
class Segment:
    """One segment whose KV can be stored: S, a document, or earlier turns.

    Attributes:
        start: its first row in the prompt.
        end: the row after its last one.
        offset: position of its first token when it was precomputed, in tokens: the length of the
            prefix that stood before it then.
        uncached: no usable KV is stored for it; its rows are computed like the question's.
        exact: it was precomputed behind the same tokens that stand before it in this prompt, so
            its stored KV is that of a full prefill.
        ranking_only: its stored KV serves passes that choose rows; then all its rows are computed.
    """

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

    Attributes:
        ids: token ids `[n]` int64.
        segments: S first, then the documents in order, then earlier turns.
        question_start: the first row of Q.
        history: how many of the segments, the last ones, are earlier turns.
    """

    ids: Tensor
    segments: tuple[Segment, ...]
    question_start: int
    history: int = 0

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
        """Place the segments one after another.

        Args:
            uncached: for S, then for every document: whether its rows must be computed.
            prefixes: what each document was precomputed behind; none given: nothing stood before
                any of them.
            history: how many of the last documents are earlier turns.
            ranking_only: of which documents the stored KV serves passes alone, by number from 0.
        """
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
        tokens = torch.tensor(ids, dtype=torch.long, device=device)
        return cls(tokens, tuple(segments), start, history)

    @property
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

    @property
    def question_rows(self) -> Tensor:
        return torch.arange(self.question_start, self.tokens, device=self.ids.device)

    @property
    def all_rows(self) -> Tensor:
        return torch.arange(self.tokens, device=self.ids.device)

    @property
    def forced_rows(self) -> Tensor:
        """Rows that every method computes at every layer: those of segments that are `computed`,
        and the question.

        The question's first layers may be reused from an earlier pass
        (`service.worker.forward.layer_ops`).
        """
        computed = [self._rows(s) for s in self.segments if s.computed and s.tokens]
        return torch.cat([*computed, self.question_rows])

    @property
    def cached_document_rows(self) -> Tensor:
        """Document rows whose KV came from the store: the candidates for recomputation."""
        cached = [self._rows(s) for s in self.documents if not s.computed and s.tokens]
        empty = torch.empty(0, dtype=torch.long, device=self.ids.device)
        return torch.cat(cached) if cached else empty

    @property
    def stale_documents(self) -> tuple[Segment, ...]:
        """Cached documents whose KV can differ from that of a full prefill."""
        return tuple(s for s in self.documents if s.tokens and not s.computed and not s.exact)

    @property
    def stale_document_rows(self) -> Tensor:
        """Rows of `stale_documents`: the only cached ones that recomputing can change."""
        stale = [self._rows(s) for s in self.stale_documents]
        empty = torch.empty(0, dtype=torch.long, device=self.ids.device)
        return torch.cat(stale) if stale else empty

    @property
    def cached_rows(self) -> Tensor:
        """Every row except those of uncached segments, ascending."""
        cached = [self._rows(s) for s in self.segments if not s.uncached and s.tokens]
        return torch.cat([*cached, self.question_rows])

    def to(self, device: torch.device | str) -> PromptLayout:
        return replace(self, ids=self.ids.to(device))

    def count_rows(self, rows: Tensor) -> list[int]:
        """Return how many of the rows, ascending `[m]`, each segment has."""
        starts = [segment.start for segment in self.segments]
        borders = torch.tensor([*starts, *(segment.end for segment in self.segments)])
        # One transfer from the device for all segments.
        before = torch.searchsorted(rows, borders.to(rows.device)).tolist()
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

    def _rows(self, segment: Segment) -> Tensor:
        return torch.arange(segment.start, segment.end, device=self.ids.device)


def union(*rows: Tensor) -> Tensor:
    """Return the ascending union of row sets."""
    merged: Tensor = torch.unique(torch.cat(rows), sorted=True)
    return merged
