"""Compares freshly computed KV with stored KV, and shifts stored KV by the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import rotation
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.layout import PromptLayout, to_device
from kvstitch.service.worker.methods.layer_view import CachedSegment, LayerView


@dataclass(frozen=True)
class Probed:
    """Tokens of a document whose fresh KV is known."""

    segment: int  # number of the document among the prompt's segments
    span: slice  # its rows in the prompt
    # of the document `[p]`; on the host, where most KV is: only they go to the device
    tokens: Tensor
    places: Tensor  # of these among the computed rows `[p]`, on the host


@dataclass(frozen=True)
class PlannedShift:
    """What a shift knows before anything is computed, in host memory."""

    documents: Sequence[Probed]  # that have probes, in order
    moved: Tensor  # whether a row of the prompt is of such a document and not computed `[n]`
    weight: Tensor | float  # of every row that is moved

    @classmethod
    def of(
        cls,
        layout: PromptLayout,
        cached: Sequence[CachedSegment | None],
        computed: Tensor,
        probes: Tensor,
        weight: Tensor | float,
    ) -> Self:
        """Plan a shift by `probes`, ascending document rows `[p]`, of the rows that are not
        `computed` `[m]`, both known in host memory."""
        computed, probes = layout.on_host(computed), layout.on_host(probes)
        moved = torch.zeros(layout.tokens, dtype=torch.bool)
        places = torch.searchsorted(computed, probes)
        documents: list[Probed] = []
        first = 0
        counts = layout.count_rows(probes)
        for number, (segment, stored, count) in enumerate(
            zip(layout.segments, cached, counts, strict=True)
        ):
            mine = slice(first, first + count)
            first += count
            if not count or stored is None or segment.uncached:
                continue
            span = slice(segment.start, segment.end)
            moved[span] = True
            documents.append(Probed(number, span, probes[mine] - span.start, places[mine]))
        moved[computed] = False
        return cls(documents, moved, weight)

    @cached_property
    def places(self) -> Tensor:
        """All probes' places among the computed rows `[p]`."""
        return torch.cat([document.places for document in self.documents])

    @cached_property
    def tokens(self) -> Tensor:
        """All probes, by their numbers in their documents `[p]`."""
        return torch.cat([document.tokens for document in self.documents])


@dataclass(frozen=True)
class Shift:
    """How the tokens of a prompt are shifted, which is the same at every layer: every cached
    token of a document that is not computed is moved by its weight times the mean of fresh minus
    stored over its document's probes."""

    documents: Sequence[Probed]
    firsts: Sequence[int]  # which of all their probes is the first of each
    tokens: Tensor  # all their probes, by their numbers in their documents, on the host `[p]`
    fresh: Tensor  # places of all their probes among the computed rows `[p]`
    average: Tensor  # makes means of the probes' values `[documents, p]` fp32
    rows: slice  # from the first row of these documents to the last
    document_of: Tensor  # number of each row's document; any where the weight is 0 `[rows]`
    weights: Tensor  # of each row, 0 for those that are computed or of no such document `[rows]`
    positions: Tensor  # of these rows `[rows]`
    # what does it where the device has kernels for it and what was replaced is kept
    on_device: Callable[..., None] | None
    by_kernel: bool  # whether kernels on a CPU do it

    @classmethod
    def of(cls, view: LayerView, probes: Tensor, weights: Tensor | float) -> Shift | None:
        """Plan a shift by `probes`, ascending computed document rows `[p]`, with a weight of
        every token `[n]` or one for all, for this layer and those after it, at which the same
        rows are computed; None: there is nothing to shift."""
        layout, device = view.layout, view.k.device
        planned = PlannedShift.of(layout, view.cached, view.rows, probes, weights)
        documents = planned.documents
        if not documents:
            return None
        rows = slice(documents[0].span.start, documents[-1].span.stop)
        given = weights[rows] if isinstance(weights, Tensor) else torch.tensor(weights)
        each = to_device(planned.moved[rows], device) * given.to(view.k.dtype)
        on_device = None
        if view.replaced is not None:
            on_device = kernels_of(device).plan_shift(view, planned, each, rows.start)
        counts = [len(document.tokens) for document in documents]
        stored = [] if on_device else [_layer_of(view, document) for document in documents]
        document_of = torch.zeros(rows.stop - rows.start, dtype=torch.int64)
        for number, document in enumerate(documents):
            document_of[document.span.start - rows.start : document.span.stop - rows.start] = number
        return cls(
            documents,
            [0, *accumulate(counts[:-1])],
            planned.tokens,
            to_device(planned.places, device),
            to_device(_averages(counts), device),
            rows,
            to_device(document_of, device),
            each,
            layout.all_rows[rows],
            on_device,
            on_device is None
            and rotation.supports_shift(stored, (view.fresh_k, view.fresh_v), (view.k, view.v)),
        )

    def apply(self, view: LayerView, *, keys: bool = True, values: bool = True) -> None:
        """Shift the keys (by a mean that is taken before RoPE) and values of a layer in place."""
        if self.on_device is not None and view.replaced is not None:
            self.on_device(view, keys=keys, values=values)
            return
        stored = [_layer_of(view, document) for document in self.documents]
        if self.by_kernel:
            gaps = rotation.shift_gaps(
                stored,
                (view.fresh_k, view.fresh_v),
                firsts=self.firsts,
                tokens=self.tokens,
                places=self.fresh,
            )
            rotation.shift_rows(
                self._means(gaps[0], view.k.dtype) if keys else None,
                self._means(gaps[1], view.v.dtype) if values else None,
                (view.k, view.v), document_of=self.document_of, weights=self.weights,
                first=self.rows.start, positions=self.positions, cos=view.rope.cos,
                sin=view.rope.sin,
            )  # fmt: skip
            return
        if keys:
            by = self._added_by_shift(view.fresh_k, [kv[0] for kv in stored])
            view.k[:, self.rows].add_(view.rotate(by, self.positions).transpose(0, 1))
        if values:
            by = self._added_by_shift(view.fresh_v, [kv[1] for kv in stored])
            view.v[:, self.rows].add_(by.transpose(0, 1))

    def _means(self, gaps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return each document's mean of `gaps` `[p, kv_heads * head_dim]` fp32."""
        return (self.average @ gaps).to(dtype)

    def _added_by_shift(self, fresh: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """Return what is added to every row's keys or values `[rows, kv_heads, head_dim]`."""
        kept = [
            kv.index_select(0, each.tokens.to(kv.device))
            for each, kv in zip(self.documents, stored, strict=True)
        ]
        if len({each.device for each in kept}) > 1:  # earlier turns come from the KV pool
            kept = [to_device(each, self.fresh.device) for each in kept]
        old = torch.cat(kept).to(fresh.device).flatten(1)
        new = fresh.index_select(0, self.fresh).flatten(1)
        means = self._means(new.float() - old.float(), fresh.dtype)
        by = means.index_select(0, self.document_of).mul_(self.weights[:, None])
        return by.view(-1, *fresh.shape[1:])


def _layer_of(view: LayerView, document: Probed) -> tuple[Tensor, Tensor]:
    stored = view.cached[document.segment]
    assert stored is not None, "only documents with stored KV have probes"
    return stored.layer(view.layer)


def _averages(counts: Sequence[int]) -> Tensor:
    """Return a matrix `[len(counts), sum(counts)]` that takes the mean of each group of
    neighbours."""
    out, at = torch.zeros(len(counts), sum(counts)), 0
    for row, count in zip(out, counts, strict=True):
        row[at : at + count] = 1 / count
        at += count
    return out


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Return squared distance between fresh and stored KV at every token of a layer."""
    on_device = kernels_of(view.k.device).squared_deviation(view, keys=keys, values=values)
    if on_device is not None:
        return on_device
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
    return deviation
