"""AgentKVShift: all rows up to layer 1; then the tokens whose stored keys or values deviate most
there (⌊ratio · |D|⌋ probes) and the question. Every other token of a document is shifted by w ·
(mean over its document's probes of fresh - stored), w being its own deviation at layer 1, at most
1.

Source: docs/specification.md §1.10; "AgentKVShift", arXiv 2607.21604, of which only notes could be
read. What is not said: keys are shifted before RoPE; deviation is relative to the stored vector's
length over all heads; probes are taken from both rankings in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.methods.api import (
    DenseMethod,
    LayerView,
    PromptLayout,
    PromptShape,
    Shift,
    floor_share,
    parameter,
    squared_deviation,
    stable_topk,
    union,
)

CHECK_LAYER = 1


@dataclass(frozen=True)
class AgentKVShift(DenseMethod):
    """Recompute the document tokens whose stored KV differs most from the true one at layer 1, and
    shift all others by the mean difference that these show at every later layer."""

    ratio: float = parameter(
        0.1, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )

    @property
    def layers_without_cache(self) -> int:
        return CHECK_LAYER

    @property
    def full_layers(self) -> int:
        return CHECK_LAYER

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return floor_share(sum(shape.documents), self.ratio)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER:
            return None
        view.memo["deviations"] = [_relative(view, keys=keys) for keys in (True, False)]
        view.memo["probes"] = self._in_turn(
            view.layout.cached_document_rows, view.memo["deviations"]
        )
        return union(*view.memo["probes"], view.layout.question_rows)

    def reads_replaced(self, layer: int) -> bool:
        return layer > CHECK_LAYER

    def adjust(self, view: LayerView) -> None:
        if view.layer <= CHECK_LAYER or "probes" not in view.memo:
            return
        if "shifts" not in view.memo:
            view.memo["shifts"] = [
                Shift.of(view, probes, deviation.clamp(max=1))
                for probes, deviation in zip(
                    view.memo["probes"], view.memo["deviations"], strict=True
                )
            ]
        keys, values = view.memo["shifts"]
        if keys is not None:
            keys.apply(view, values=False)
        if values is not None:
            values.apply(view, keys=False)

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER:
            return None
        return _relative(view, keys=True) + _relative(view, keys=False)

    def _in_turn(self, candidates: Tensor, deviations: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the probes of keys and those of values, together ⌊ratio · |D|⌋ different rows."""
        wanted = floor_share(len(candidates), self.ratio)
        of_keys, of_values = (each[candidates] for each in deviations)
        keys = candidates[stable_topk(of_keys, (wanted + 1) // 2)]
        left = ~torch.isin(candidates, keys)
        return keys, candidates[left][stable_topk(of_values[left], wanted - len(keys))]


def _relative(view: LayerView, *, keys: bool) -> Tensor:
    """Return the deviation of every cached token over the length of its stored vector `[n]`."""
    gap = squared_deviation(view, keys=keys, values=not keys)
    stored = squared_norm(view, keys=keys)
    return torch.where(stored > 0, gap / stored, 0.0).sqrt()


def squared_norm(view: LayerView, *, keys: bool) -> Tensor:
    """Return squared lengths `[n]` fp32 of stored keys, or values, over heads and channels."""
    norm = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is not None and not segment.uncached and segment.tokens:
            old = stored.layer(view.layer)[0 if keys else 1].to(norm.device).float()
            norm[segment.start : segment.end] = old.square().sum((1, 2))
    return norm
