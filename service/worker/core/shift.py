"""Shifts stored KV by what computed rows of the same document show that it is wrong by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.core.layer_view import CachedSegment, LayerView

SERIAL_ELEMENTS = 1 << 15
"""On a CPU torch wakes other threads for more elements, which takes longer than the work does."""


@dataclass(frozen=True)
class Part:
    """Neighbouring rows of one document.

    Attributes:
        document: its number among those with a probe.
        rows: prompt rows.
        positions: of these rows `[m]`.
        weights: of these rows, 0 for those that are computed `[m, 1, 1]`.
    """

    document: int
    rows: slice
    positions: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Probed:
    """Tokens of a document whose fresh KV is known.

    Attributes:
        stored: KV of the document.
        tokens: of the document `[p]`; on the host, where its KV is: only they go to the device.
        fresh: their places among the computed rows `[p]`.
    """

    stored: CachedSegment
    tokens: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class Shift:
    """How the tokens of a prompt are shifted, which is the same at every layer.

    Every cached token of a document that is not computed is moved by its weight times the mean of
    fresh minus stored over its document's probes. A document without a probe stays as it is.

    Attributes:
        documents: those with a probe.
        parts: their rows.
    """

    documents: Sequence[Probed]
    parts: Sequence[Part]

    @classmethod
    def of(cls, view: LayerView, probes: Tensor, weights: Tensor | float) -> Shift | None:
        """Plans a shift for this layer and those after it, at which the same rows are computed.

        Args:
            probes: ascending document rows, all computed `[p]`.
            weights: of every token `[n]`; or one for all.

        Returns:
            None if there is nothing to shift.
        """
        layout, device, dtype = view.layout, view.k.device, view.k.dtype
        each = torch.zeros(layout.tokens, dtype=dtype, device=device) + weights
        each[view.rows] = 0
        most = max(1, SERIAL_ELEMENTS // (view.k.shape[0] * view.k.shape[2]))
        fresh = torch.searchsorted(view.rows, probes)
        documents: list[Probed] = []
        parts: list[Part] = []
        first = 0
        for segment, stored, count in zip(
            layout.segments, view.cached, layout.count_rows(probes), strict=True
        ):
            of_segment = slice(first, first + count)
            first += count
            if not count or stored is None or segment.uncached:
                continue
            size = most if device.type == "cpu" else segment.tokens
            for start in range(segment.start, segment.end, size):
                rows = slice(start, min(start + size, segment.end))
                positions = torch.arange(rows.start, rows.stop, device=device)
                parts.append(Part(len(documents), rows, positions, each[rows, None, None]))
            tokens = (probes[of_segment] - segment.start).cpu()
            documents.append(Probed(stored, tokens, fresh[of_segment]))
        return cls(documents, parts) if documents else None

    def apply(self, view: LayerView, *, keys: bool = True, values: bool = True) -> None:
        """Shifts the keys (by a mean that is taken before RoPE) and values of a layer in place."""
        stored = [document.stored.layer(view.layer) for document in self.documents]
        if keys:
            means = self._means(view.fresh_k, [k for k, _ in stored])
            for part in self.parts:
                by = view.rotate(means[part.document] * part.weights, part.positions)
                view.k[:, part.rows] += by.transpose(0, 1)
        if values:
            means = self._means(view.fresh_v, [v for _, v in stored])
            for part in self.parts:
                by = means[part.document] * part.weights
                view.v[:, part.rows] += by.transpose(0, 1)

    def _means(self, fresh: Tensor, stored: Sequence[Tensor]) -> list[Tensor]:
        """The mean error of every document `[kv_heads, head_dim]`.

        In the model's dtype: its rounding is far below that of the KV it is added to.
        """
        means = []
        for document, kv in zip(self.documents, stored, strict=True):
            new = fresh.index_select(0, document.fresh)
            old = kv.index_select(0, document.tokens).to(fresh.device)
            gap = new.mean(0, dtype=torch.float32) - old.mean(0, dtype=torch.float32)
            means.append(gap.to(fresh.dtype))
        return means
