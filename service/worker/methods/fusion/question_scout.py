"""Question scout, a method of kvstitch's own: the question runs once over the stitched cache, and
the tokens that it attends to between `from_depth` and `to_depth` are recomputed: by the last row,
which predicts the first answer token, plus `question` times the mean of all question rows. All
other tokens of a document are shifted by `shift` times the mean of fresh minus stored over its
computed ones. A document that was precomputed behind just what stands before it in the prompt gets
no rows.

Source: docs/methods.md, with its measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import Probes, RowWeights, TwoPassMethod
from kvstitch.service.worker.methods.bases.fusion import share_of
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.scores import stable_topk


@dataclass(frozen=True)
class Method(TwoPassMethod):
    """Recompute what the question attends to in the layers in which answers are read, and shift
    the rest of every document by how wrong that was; no layer is computed for every token."""

    ratio: float = parameter(
        0.15, "share of the prompt's tokens to recompute", ge=0, le=1, auto=True
    )
    question: float = parameter(
        2.0, "weight of the mean question row beside the last one", ge=0, le=100
    )
    from_depth: float = parameter(
        0.5, "share of the layers, from the first, whose attention says nothing", ge=0, le=1
    )
    to_depth: float = parameter(
        0.9,
        "share of the layers at which the question pass ends; its last layer always counts",
        ge=0,
        le=1,
    )
    shift: float = parameter(
        0.25,
        "how far tokens that are not computed are moved by what computed ones of their document "
        "were wrong by",
        ge=0,
        le=1,
    )

    def question_pass_layers(self, layers: int) -> range:
        stop = max(1, round(self.to_depth * layers))
        return range(min(round(self.from_depth * layers), stop - 1), stop)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        def weights() -> Tensor:
            rows = layout.on_host(layout.question_rows)
            return (rows == layout.tokens - 1).float() + self.question / len(rows)

        return layout.once("weights of question rows", weights)

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.stale_document_rows
        return candidates[stable_topk(scores[candidates], share_of(layout, self.ratio))]

    def probes(self, layout: PromptLayout, rows: Tensor, scores: Tensor | None) -> Probes | None:
        if not self.shift or scores is None:
            return None
        computed, stale = layout.on_host(rows), torch.zeros(layout.tokens, dtype=torch.bool)
        stale[layout.on_host(layout.stale_document_rows)] = True
        return Probes(layout.on_device(computed[stale[computed]]), self.shift)

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None
