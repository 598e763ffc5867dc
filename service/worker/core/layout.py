"""Where the segments of one prompt lie: S ‖ D_1..D_k ‖ Q as index ranges over one id sequence.

     0        |S|            |S|+|D_1|                      n-|Q|        n
     ├── S ──┤├──── D_1 ────┤├──── D_2 ────┤ …  ├─── D_k ───┤├─── Q ───┤

Knows no tensors of KV, no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """One cacheable segment: S (index 0) or a document.

    `offset`: positions its keys had when they were precomputed began here (prefix length).
    `cold`: no usable KV is stored, its rows are computed like the question's.
    """

    start: int
    end: int
    offset: int = 0
    cold: bool = False

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PromptLayout:
    """`segments[0]` is S; ids `[n]` int64."""

    ids: Tensor
    segments: tuple[Segment, ...]
    question_start: int

    @classmethod
    def of(
        cls,
        system: Sequence[int],
        documents: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        cold: Sequence[bool],
        offset: int = 0,
        device: torch.device | None = None,
    ) -> PromptLayout:
        """`cold[0]` is S, `cold[i]` document i; `offset` the prefix length of the documents."""
        ids = list(system)
        segments = [Segment(0, len(system), 0, cold[0])]
        for document, is_cold in zip(documents, cold[1:], strict=True):
            segments.append(Segment(len(ids), len(ids) + len(document), offset, is_cold))
            ids.extend(document)
        start = len(ids)
        ids.extend(question)
        return cls(torch.tensor(ids, dtype=torch.long, device=device), tuple(segments), start)

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def documents(self) -> tuple[Segment, ...]:
        return self.segments[1:]

    @property
    def question_rows(self) -> Tensor:
        return torch.arange(self.question_start, self.tokens, device=self.ids.device)

    @property
    def all_rows(self) -> Tensor:
        return torch.arange(self.tokens, device=self.ids.device)

    @property
    def forced_rows(self) -> Tensor:
        """Rows that every method computes at every layer: cold segments and the question (whose
        first layers may be those of a first pass, `service.worker.forward.question_pass`)."""
        cold = [self._rows(s) for s in self.segments if s.cold and s.tokens]
        return torch.cat([*cold, self.question_rows])

    @property
    def cached_document_rows(self) -> Tensor:
        """Candidates for recomputation: document tokens that came out of a cache."""
        warm = [self._rows(s) for s in self.documents if not s.cold and s.tokens]
        empty = torch.empty(0, dtype=torch.long, device=self.ids.device)
        return torch.cat(warm) if warm else empty

    @property
    def stale_documents(self) -> tuple[Segment, ...]:
        """Documents out of a cache whose KV can differ from full prefill's: all but a first one
        that was precomputed behind exactly what stands before it."""
        warm = [s for s in self.documents if not s.cold and s.tokens]
        return tuple(s for s in warm if s.offset != s.start)

    @property
    def stale_document_rows(self) -> Tensor:
        """Document tokens whose recomputation can change anything."""
        stale = [self._rows(s) for s in self.stale_documents]
        empty = torch.empty(0, dtype=torch.long, device=self.ids.device)
        return torch.cat(stale) if stale else empty

    @property
    def cached_rows(self) -> Tensor:
        """Every row but those of cold segments, ascending."""
        warm = [self._rows(s) for s in self.segments if not s.cold and s.tokens]
        return torch.cat([*warm, self.question_rows])

    def only(self, rows: Tensor) -> PromptLayout:
        """The prompt of `rows` (ascending indices) alone, moved together; nothing of it cached."""
        segments, at = [], 0
        for segment in self.segments:
            inside = int(((rows >= segment.start) & (rows < segment.end)).sum())
            segments.append(Segment(at, at + inside, cold=True))
            at += inside
        return PromptLayout(self.ids[rows], tuple(segments), at)

    def _rows(self, segment: Segment) -> Tensor:
        return torch.arange(segment.start, segment.end, device=self.ids.device)


def union(*rows: Tensor) -> Tensor:
    """Ascending union of row sets."""
    merged: Tensor = torch.unique(torch.cat(rows), sorted=True)
    return merged
