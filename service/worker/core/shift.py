"""Shifts stored KV by what computed rows of the same document show that it is wrong by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.core.layer_view import CachedSegment, LayerView


@dataclass(frozen=True)
class Shift:
    """How the tokens of a prompt are shifted, which is the same at every layer.

    Every cached token of a document that is not computed is moved by its weight times the mean of
    fresh minus stored over its document's probes. A document without a probe stays as it is.

    Attributes:
        probed: stored KV of every document that has a probe, and its probes' places in it.
        computed: the probes' places among the computed rows `[p]`.
        means: takes the mean by document, `[documents, p]` fp32.
        span: prompt rows from the first such document to the last.
        rows: their positions `[m]`.
        document: of each of them, its number in `probed`; one more for those that stay `[m]`.
        weights: of each of them, `[m, 1, 1]`; or one for all.
    """

    probed: Sequence[tuple[CachedSegment, Tensor]]
    computed: Tensor
    means: Tensor
    span: slice
    rows: Tensor
    document: Tensor
    weights: Tensor | float

    @classmethod
    def of(cls, view: LayerView, probes: Tensor, weights: Tensor | float) -> Shift | None:
        """Plans a shift for this layer and those after it, at which the same rows are computed.

        Args:
            probes: ascending document rows, all computed `[p]`.
            weights: of every token `[n]`; or one for all.

        Returns:
            None if there is nothing to shift.
        """
        layout, device = view.layout, view.k.device
        segments = [
            (segment, stored, count)
            for segment, stored, count in zip(
                layout.segments, view.cached, layout.count_rows(probes), strict=True
            )
            if count and stored is not None and not segment.uncached
        ]
        if not segments:
            return None
        document = torch.full((layout.tokens,), len(segments), device=device)
        means = torch.zeros(len(segments), len(probes), device=device)
        probed, first = [], 0
        for number, (segment, stored, count) in enumerate(segments):
            document[segment.start : segment.end] = number
            means[number, first : first + count] = 1 / count
            # On the host, where the stored KV is: only the probes' rows go to the device.
            probed.append((stored, (probes[first : first + count] - segment.start).cpu()))
            first += count
        document[view.rows] = len(segments)
        span = slice(segments[0][0].start, segments[-1][0].end)
        if isinstance(weights, Tensor):
            weights = weights[span, None, None].to(view.k.dtype)
        rows = torch.arange(span.start, span.stop, device=device)
        computed = torch.searchsorted(view.rows, probes)
        return cls(probed, computed, means, span, rows, document[span], weights)

    def apply(self, view: LayerView, *, keys: bool = True, values: bool = True) -> None:
        """Shifts the keys (by a mean that is taken before RoPE) and values of a layer in place."""
        stored = [(segment.layer(view.layer), at) for segment, at in self.probed]
        if keys:
            by = self._by(view.fresh_k, [k[at] for (k, _), at in stored])
            view.k[:, self.span] += view.rotate(by, self.rows).transpose(0, 1)
        if values:
            by = self._by(view.fresh_v, [v[at] for (_, v), at in stored])
            view.v[:, self.span] += by.transpose(0, 1)

    def _by(self, fresh: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """By how much every row is shifted `[m, kv_heads, head_dim]`, in the model's dtype.

        Its rounding is far below that of the KV it is added to.
        """
        old = torch.cat(list(stored)).to(fresh.device)
        gaps = fresh[self.computed].float() - old.float()
        means = self.means @ gaps.flatten(1)
        if not isinstance(self.weights, Tensor):
            means *= self.weights
        still = means.new_zeros(1, means.shape[1])
        means = torch.cat([means, still]).to(fresh.dtype).view(-1, *fresh.shape[1:])
        by = means[self.document]
        return by * self.weights if isinstance(self.weights, Tensor) else by
