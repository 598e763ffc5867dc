"""Chooses rows: edges of chunks first, then what the question attends to, within one budget.

These are the ablation's ways to choose. With the defaults of `Pick` they equal question_scout,
which a test checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.methods.api import PromptLayout, share_of, stable_topk


@dataclass(frozen=True)
class Pick:
    """How rows are chosen.

    Attributes:
        ratio: share of the prompt to recompute.
        first: tokens at the start of every document to choose; the outermost tokens of all
            documents come before any further in.
        last: the same at the end of every document.
        ends: largest share of the rows for `first` and `last`.
        pool: the score of a token is the largest within this distance in its document.
        dilate: a chosen token brings this many neighbours of its document along on either side.
    """

    ratio: float = 0.15
    first: int = 2
    last: int = 0
    ends: float = 0.5
    pool: int = 0
    dilate: int = 0

    def rows(self, layout: PromptLayout, attention_scores: Tensor) -> Tensor:
        """⌊ratio · n⌋ rows (at most all candidates), ascending, from attention scores `[n]`."""
        candidates = layout.stale_document_rows
        wanted = share_of(layout, self.ratio)
        rank = attention_scores.double()
        for segment in layout.documents:
            inside = slice(segment.start, segment.end)
            if self.pool and segment.tokens:
                rank[inside] = _pooled(rank[inside], self.pool)
        rank = rank[candidates]
        top = float(rank.max()) if len(rank) else 0.0
        from_start, from_end = _depths(layout)
        limit = max(self.first, self.last)
        far = torch.full_like(from_start, limit)
        depth = torch.minimum(
            torch.where(from_start < self.first, from_start, far),
            torch.where(from_end < self.last, from_end, far),
        )
        order = depth.sort(stable=True).indices[: int((depth < limit).sum())]
        edges = order[: int(self.ends * wanted)]
        rank[edges] = top + (limit - depth[edges]).double()
        if self.dilate:
            return _dilated(layout, candidates, rank, wanted, self.dilate)
        return candidates[stable_topk(rank, wanted)]


def _depths(layout: PromptLayout) -> tuple[Tensor, Tensor]:
    """For each candidate, the number of tokens of its document before it and after it."""
    sizes = [s.tokens for s in layout.stale_documents]
    before = [torch.arange(size, device=layout.ids.device) for size in sizes]
    empty = layout.ids.new_empty(0)
    return torch.cat([empty, *before]), torch.cat([empty, *(b.flip(0) for b in before)])


def _pooled(values: Tensor, reach: int) -> Tensor:
    return F.max_pool1d(values[None, None], 2 * reach + 1, stride=1, padding=reach)[0, 0]


def _dilated(
    layout: PromptLayout, candidates: Tensor, rank: Tensor, wanted: int, reach: int
) -> Tensor:
    """Chooses tokens by rank, each with its neighbours, until there are `wanted`."""
    document = torch.zeros(layout.tokens, dtype=torch.long)
    for number, segment in enumerate(layout.documents, start=1):
        document[segment.start : segment.end] = number
    of = document.tolist()
    allowed = set(candidates.tolist())
    chosen: dict[int, None] = {}
    for at in torch.sort(rank, descending=True, stable=True).indices.tolist():
        center = int(candidates[at])
        around = sorted(range(center - reach, center + reach + 1), key=lambda t: abs(t - center))
        for row in around:
            if len(chosen) == min(wanted, len(candidates)):
                return torch.tensor(sorted(chosen), dtype=torch.long, device=candidates.device)
            if row in allowed and of[row] == of[center]:
                chosen.setdefault(row)
    return torch.tensor(sorted(chosen), dtype=torch.long, device=candidates.device)
