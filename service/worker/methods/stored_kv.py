"""Compares freshly computed KV with stored KV, and shifts stored KV by the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.methods.layer_view import CachedSegment, LayerView


@dataclass(frozen=True)
class Probed:
    """Tokens of a document whose fresh KV is known.

    Attributes:
        stored: KV of the document.
        tokens: of the document `[p]`; on the host, where most KV is: only they go to the device.
    """

    stored: CachedSegment
    tokens: Tensor


@dataclass(frozen=True)
class Shift:
    """How the tokens of a prompt are shifted, which is the same at every layer.

    Every cached token of a document that is not computed is moved by its weight times the mean of
    fresh minus stored over its document's probes. A document without a probe stays as it is.

    Attributes:
        fresh: places of all their probes among the computed rows `[p]`.
        average: makes means of the probes' values `[documents, p]` fp32.
        rows: from the first row of these documents to the last.
        document_of: number of each row's document; any where the weight is 0 `[rows]`.
        weights: of each row, 0 for those that are computed or of no such document `[rows, 1]`.
        positions: of these rows `[rows]`.
    """

    documents: Sequence[Probed]
    fresh: Tensor
    average: Tensor
    rows: slice
    document_of: Tensor
    weights: Tensor
    positions: Tensor

    @classmethod
    def of(cls, view: LayerView, probes: Tensor, weights: Tensor | float) -> Shift | None:
        """Plan a shift for this layer and those after it, at which the same rows are computed.

        Args:
            probes: ascending document rows, all computed `[p]`.
            weights: of every token `[n]`; or one for all.

        Returns:
            None if there is nothing to shift.
        """
        layout, device = view.layout, view.k.device
        each = torch.zeros(layout.tokens, dtype=view.k.dtype, device=device)
        document_of = torch.zeros(layout.tokens, dtype=torch.int64, device=device)
        places = torch.searchsorted(view.rows, probes)
        documents: list[Probed] = []
        fresh: list[Tensor] = []
        spans: list[slice] = []
        first = 0
        for segment, stored, count in zip(
            layout.segments, view.cached, layout.count_rows(probes), strict=True
        ):
            of_segment = slice(first, first + count)
            first += count
            if not count or stored is None or segment.uncached:
                continue
            span = slice(segment.start, segment.end)
            each[span] = weights[span].to(each.dtype) if isinstance(weights, Tensor) else weights
            document_of[span] = len(documents)
            documents.append(Probed(stored, (probes[of_segment] - segment.start).cpu()))
            fresh.append(places[of_segment])
            spans.append(span)
        if not documents:
            return None
        each[view.rows] = 0
        rows = slice(spans[0].start, spans[-1].stop)
        return cls(
            documents,
            torch.cat(fresh),
            _averages([len(part) for part in fresh]).to(device),
            rows,
            document_of[rows],
            each[rows, None],
            torch.arange(rows.start, rows.stop, device=device),
        )

    def apply(self, view: LayerView, *, keys: bool = True, values: bool = True) -> None:
        """Shift the keys (by a mean that is taken before RoPE) and values of a layer in place."""
        stored = [document.stored.layer(view.layer) for document in self.documents]
        if keys:
            by = self._by(view.fresh_k, [k for k, _ in stored])
            view.k[:, self.rows] += view.rotate(by, self.positions).transpose(0, 1)
        if values:
            by = self._by(view.fresh_v, [v for _, v in stored])
            view.v[:, self.rows] += by.transpose(0, 1)

    def _by(self, fresh: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """Return what is added to every row `[rows, kv_heads, head_dim]`.

        In the model's dtype: its rounding is far below that of the KV it is added to.
        """
        kept = [
            kv.index_select(0, each.tokens.to(kv.device))
            for each, kv in zip(self.documents, stored, strict=True)
        ]
        if len({each.device for each in kept}) > 1:  # earlier turns come from the KV pool
            kept = [each.to(fresh.device) for each in kept]
        old = torch.cat(kept).to(fresh.device).flatten(1)
        new = fresh.index_select(0, self.fresh).flatten(1)
        means = (self.average @ (new.float() - old.float())).to(fresh.dtype)
        by = means.index_select(0, self.document_of).mul_(self.weights)
        return by.view(-1, *fresh.shape[1:])


def _averages(counts: Sequence[int]) -> Tensor:
    """Return a matrix `[len(counts), sum(counts)]` that takes the mean of each group of
    neighbours."""
    out, at = torch.zeros(len(counts), sum(counts)), 0
    for row, count in zip(out, counts, strict=True):
        row[at : at + count] = 1 / count
        at += count
    return out


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Return squared distance between fresh and stored KV at every token of a layer.

    Keys are compared before RoPE: RoPE rotates both by the same angle, so the distance is the same.

    Returns:
        `[n]` fp32, summed over KV heads and channels; zero for a token that has no stored KV or
        was not computed at this layer.
    """
    # Index of every token's row in `view.rows`, -1 for tokens that are not computed here.
    row_of_token = torch.full((view.layout.tokens,), -1, device=view.rows.device)
    row_of_token[view.rows] = torch.arange(len(view.rows), device=view.rows.device)
    deviation = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is None or segment.uncached or not segment.tokens:
            continue
        segment_rows = row_of_token[segment.start : segment.end]
        computed = torch.nonzero(segment_rows >= 0).squeeze(1)
        stored_k, stored_v = stored.layer(view.layer)
        compared = [(view.fresh_k, stored_k)] if keys else []
        compared += [(view.fresh_v, stored_v)] if values else []
        for fresh, old in compared:
            gap = fresh[segment_rows[computed]].float() - old.to(fresh.device)[computed].float()
            deviation[segment.start + computed] += gap.square().sum((1, 2))
    return view.over_all_heads(deviation)


def squared_norm(view: LayerView, *, keys: bool) -> Tensor:
    """Return squared lengths `[n]` fp32 of the stored keys, or values, over KV heads and channels.

    Zero for a token that has no stored KV.
    """
    norm = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is not None and not segment.uncached and segment.tokens:
            old = stored.layer(view.layer)[0 if keys else 1].to(norm.device).float()
            norm[segment.start : segment.end] = old.square().sum((1, 2))
    return view.over_all_heads(norm)
