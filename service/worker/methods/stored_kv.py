"""Compares freshly computed KV with stored KV, and shifts stored KV by the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.device_copies import to_device
from service.worker.kernels.gpu import shift_gpu
from service.worker.kernels.gpu.shift_gpu import ShiftPlan
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
        plan: of the kernel that does it on a GPU; None elsewhere.
    """

    documents: Sequence[Probed]
    fresh: Tensor
    average: Tensor
    rows: slice
    document_of: Tensor
    weights: Tensor
    positions: Tensor
    plan: ShiftPlan | None

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
        computed, probes = layout.on_host(view.rows), layout.on_host(probes)
        document_of = torch.zeros(layout.tokens, dtype=torch.int64)
        moved = torch.zeros(layout.tokens, dtype=torch.bool)
        places = torch.searchsorted(computed, probes)
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
            moved[span] = True
            document_of[span] = len(documents)
            documents.append(Probed(stored, probes[of_segment] - segment.start))
            fresh.append(places[of_segment])
            spans.append(span)
        if not documents:
            return None
        moved[computed] = False
        rows = slice(spans[0].start, spans[-1].stop)
        given = weights[rows] if isinstance(weights, Tensor) else torch.tensor(weights)
        each = to_device(moved[rows], device) * given.to(view.k.dtype)
        plan = None
        if view.replaced is not None and shift_gpu.supports(view.k):
            numbers = [len(part) for part in fresh]
            plan = ShiftPlan.of(spans, numbers, torch.cat(fresh), each, device)
        return cls(
            documents,
            to_device(torch.cat(fresh), device),
            to_device(_averages([len(part) for part in fresh]), device),
            rows,
            to_device(document_of[rows], device),
            each[:, None],
            layout.all_rows[rows],
            plan,
        )

    def apply(self, view: LayerView, *, keys: bool = True, values: bool = True) -> None:
        """Shift the keys (by a mean that is taken before RoPE) and values of a layer in place."""
        if self.plan is not None and view.replaced is not None:
            old_k, old_v, rope = view.replaced
            shift_gpu.shift(
                self.plan, view.k, view.v, (view.fresh_k, view.fresh_v), (old_k, old_v), view.rows,
                cos=rope.cos, sin=rope.sin, keys=keys, values=values,
            )  # fmt: skip
            return
        stored = [document.stored.layer(view.layer) for document in self.documents]
        if keys:
            by = self._by(view.fresh_k, self._old([kv[0] for kv in stored]))
            view.k[:, self.rows].add_(view.rotate(by, self.positions).transpose(0, 1))
        if values:
            by = self._by(view.fresh_v, self._old([kv[1] for kv in stored]))
            view.v[:, self.rows].add_(by.transpose(0, 1))

    def _old(self, stored: Sequence[Tensor]) -> Tensor:
        """Return the probes' stored keys or values `[p, kv_heads, head_dim]`, where they are."""
        kept = [
            kv.index_select(0, each.tokens.to(kv.device))
            for each, kv in zip(self.documents, stored, strict=True)
        ]
        if len({each.device for each in kept}) > 1:  # earlier turns come from the KV pool
            kept = [to_device(each, self.fresh.device) for each in kept]
        return torch.cat(kept)

    def _by(self, fresh: Tensor, old: Tensor) -> Tensor:
        """Return what is added to every row `[rows, kv_heads, head_dim]`.

        In the model's dtype: its rounding is far below that of the KV it is added to.
        """
        old = old.to(fresh.device).flatten(1)
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
    if view.k.device.type == "cuda":
        return view.over_all_heads(_in_one_pass(view, keys=keys, values=values))
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


def _in_one_pass(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """`squared_deviation` on a GPU, of all segments together, without waiting for it."""
    layout, every = view.layout, len(view.rows) == view.layout.tokens
    deviation = torch.zeros(layout.tokens, device=view.k.device)
    segments = [
        (segment, stored.layer(view.layer))
        for segment, stored in zip(layout.segments, view.cached, strict=True)
        if stored is not None and not segment.uncached and segment.tokens
    ]
    of_stored = torch.zeros(layout.tokens)
    for segment, _ in segments:
        of_stored[segment.start : segment.end] = 1
    weight = layout.once("whether KV is stored", lambda: of_stored)
    for number, fresh in enumerate((view.fresh_k, view.fresh_v)):
        if not (keys, values)[number]:
            continue
        shape = layout.tokens, *fresh.shape[1:]
        old = torch.zeros(shape, dtype=fresh.dtype, device=fresh.device)
        for segment, stored in segments:
            old[segment.start : segment.end].copy_(stored[number], non_blocking=True)
        gap = (fresh.float() - (old if every else old[view.rows])).square().sum((1, 2))
        deviation = deviation + gap if every else deviation.index_add(0, view.rows, gap)
    return deviation * weight


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
