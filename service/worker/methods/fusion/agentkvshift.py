"""AgentKVShift: recomputes a few rows, and shifts the others by what these were wrong by.

    layer 0         all rows: the next layer's inputs are exact
    layer 1         keys and values of all rows (exact). The tokens whose stored keys deviate most,
                    and those whose values do, are the probes: ⌊ratio · |D|⌋ in all
    layers >= 2     the probes and the question. Every other token of a document is shifted by
                    w · (mean over the document's probes of fresh - stored), keys by the mean of the
                    key probes, values by that of the value probes; w is the token's own deviation
                    at layer 1, at most 1

Source:
    docs/specification.md §1.10; "AgentKVShift", arXiv 2607.21604, of which only notes could be
    read. What is not said: keys are shifted before RoPE; deviation is relative to the stored
    vector's length over all heads; probes are taken from both rankings in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.deviation import squared_deviation, squared_norm
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout, union
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.shift import shift
from service.worker.core.steps import Steps
from service.worker.core.topk import stable_topk
from service.worker.methods.bases.cost import PromptShape
from service.worker.methods.bases.dense import DenseMethod, LayerLoop
from service.worker.methods.bases.fusion import floor_share

CHECK_LAYER = 1


@dataclass(frozen=True)
class Method(DenseMethod):
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

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        return (yield from loop.layers(_Run(self.ratio), self.start_rows(loop.layout)))


@dataclass(frozen=True)
class _Probes:
    """What layer 1 says.

    Attributes:
        keys, values: prompt rows by whose keys, and by whose values, documents are shifted.
        key_weights, value_weights: how far every token is shifted `[n]` fp32.
    """

    keys: Tensor
    values: Tensor
    key_weights: Tensor
    value_weights: Tensor


@dataclass(frozen=True, eq=False)
class _Run(Method):
    """One prompt's layers; `found` is empty until layer 1."""

    found: list[_Probes] = field(default_factory=list)

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER:
            return None
        layout = view.layout
        deviations = [self._relative(view, keys=keys) for keys in (True, False)]
        keys, values = self._in_turn(layout.cached_document_rows, deviations)
        self.found.append(_Probes(keys, values, *(each.clamp(max=1) for each in deviations)))
        return union(keys, values, layout.question_rows)

    def adjust(self, view: LayerView) -> None:
        if view.layer > CHECK_LAYER and self.found:
            probes = self.found[0]
            shift(view, probes.keys, probes.key_weights, keys=True)
            shift(view, probes.values, probes.value_weights, keys=False)

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER:
            return None
        return self._relative(view, keys=True) + self._relative(view, keys=False)

    def _in_turn(self, candidates: Tensor, deviations: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The probes of keys and those of values, together ⌊ratio · |D|⌋ different rows."""
        wanted = floor_share(len(candidates), self.ratio)
        of_keys, of_values = (each[candidates] for each in deviations)
        keys = candidates[stable_topk(of_keys, (wanted + 1) // 2)]
        others = candidates[~torch.isin(candidates, keys)]
        left = of_values[~torch.isin(candidates, keys)]
        return keys, others[stable_topk(left, wanted - len(keys))]

    @staticmethod
    def _relative(view: LayerView, *, keys: bool) -> Tensor:
        """Deviation of every cached token over the length of its stored vector `[n]`."""
        gap = squared_deviation(view, keys=keys, values=not keys)
        stored = squared_norm(view, keys=keys)
        return torch.where(stored > 0, gap / stored, 0.0).sqrt()
