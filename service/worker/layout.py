"""The segments of a prompt as index ranges over its token ids.

A prompt is the system segment S, then the documents D_1 .. D_k, then the question Q:

0        |S|            |S|+|D_1|                      n-|Q|        n
├── S ──┤├──── D_1 ────┤├──── D_2 ────┤ …  ├─── D_k ───┤├─── Q ───┤
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """One segment whose KV can be stored: S or a document.

    Attributes:
        start: its first row in the prompt.
        end: the row after its last one.
        offset: position of its first token when it was precomputed, in tokens: the length of the
            prefix that stood before it then.
        uncached: no usable KV is stored for it; its rows are computed like the question's.
        exact: it was precomputed behind the same tokens that stand before it in this prompt, so
            its stored KV is that of a full prefill.
    """

    start: int
    end: int
    offset: int = 0
    uncached: bool = False
    exact: bool = False

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PromptLayout:
    """A prompt of n tokens.

    Attributes:
        ids: token ids `[n]` int64.
        segments: S first, then the documents in order.
        question_start: the first row of Q.
    """

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
        uncached: Sequence[bool],
        prefixes: Sequence[Prefix] = (),
        device: torch.device | None = None,
    ) -> PromptLayout:
        """Place the segments one after another.

        Args:
            uncached: for S, then for every document: whether its rows must be computed.
            prefixes: what each document was precomputed behind; none given: nothing stood before
                any of them.
        """
        ids = list(system)
        segments = [Segment(0, len(system), 0, uncached[0], exact=True)]
        for document, is_uncached, prefix in zip(
            documents, uncached[1:], prefixes or [Prefix()] * len(documents), strict=True
        ):
            start, offset = len(ids), len(prefix.ids)
            exact = prefix.exact and offset == start and list(prefix.ids) == ids
            ids.extend(document)
            segments.append(Segment(start, len(ids), offset, is_uncached, exact))
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
        """Rows that every method computes at every layer: uncached segments and the question.

        The question's first layers may be reused from an earlier pass
        (`service.worker.forward.layer_ops`).
        """
        uncached = [self._rows(s) for s in self.segments if s.uncached and s.tokens]
        return torch.cat([*uncached, self.question_rows])

    @property
    def cached_document_rows(self) -> Tensor:
        """Document rows whose KV came from the store: the candidates for recomputation."""
        cached = [self._rows(s) for s in self.documents if not s.uncached and s.tokens]
        empty = torch.empty(0, dtype=torch.long, device=self.ids.device)
        return torch.cat(cached) if cached else empty

    @property
    def stale_documents(self) -> tuple[Segment, ...]:
        """Cached documents whose KV can differ from that of a full prefill."""
        return tuple(s for s in self.documents if s.tokens and not s.uncached and not s.exact)

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
        return PromptLayout(self.ids[rows], tuple(segments), at)

    def _rows(self, segment: Segment) -> Tensor:
        return torch.arange(segment.start, segment.end, device=self.ids.device)


def union(*rows: Tensor) -> Tensor:
    """Return the ascending union of row sets."""
    merged: Tensor = torch.unique(torch.cat(rows), sorted=True)
    return merged
