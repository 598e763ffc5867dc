"""QCFuse, a rival that is only measured: the service stores no digests.

    offline   behind every document an instruction to repeat it is read; a token's score at a layer
              is the largest attention that it gets from the instruction, over heads and rows. The
              best `digest` of each layer are its anchors
    online    the question runs over S and the anchors alone, up to the last of three critical
              layers, where its attention to all documents is measured: the largest over heads and
              rows, mean of the layers. The best ⌊ratio · |D|⌋ tokens are computed

Source:
    docs/specification.md §1.10; arXiv 2606.05875 and its first release. The paper's ratio is 0.5.
    Its critical layers come from a profile that is not published; we take three in the middle. The
    offline step is computed here with the prompt, on the documents as they are stored, and is not
    charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common.engine import attention_scores
from kvstitch.service.worker.api import ScratchKV
from kvstitch.service.worker.methods.api import (
    PrefillResult,
    PromptLayout,
    RowWeights,
    Sight,
    TwoPassMethod,
    floor_share,
    stable_topk,
    union,
)
from kvstitch_tune.case import Case

CRITICAL_DEPTHS = (0.45, 0.525, 0.6)


def critical_layers(layers: int) -> tuple[int, ...]:
    """Three layers in the middle of the model, fewer of a very shallow one."""
    return tuple(sorted({min(layers - 1, round(depth * layers)) for depth in CRITICAL_DEPTHS}))


@dataclass(frozen=True)
class QCFuse:
    """The whole method on one prompt.

    Attributes:
        instruction: token ids that ask to repeat what stands before them.
        digest: share of every document that the question sees.
    """

    ratio: float
    instruction: Sequence[int]
    digest: float = 0.1

    def run(self, case: Case) -> PrefillResult:
        anchors = [
            torch.cat([case.layout.question_rows[:0], *of_layer])
            for of_layer in zip(*self._anchors(case), strict=True)
        ]
        return case.prefill(_Online(self.ratio, critical_layers(case.decoder.layers), anchors))

    def _anchors(self, case: Case) -> list[list[Tensor]]:
        """For every document, its anchors at each layer as prompt rows."""
        system, prompt = case.layout.segments[0], case.layout
        found = []
        for segment, stored in zip(prompt.documents, case.segments[1:], strict=True):
            if stored is None:
                continue
            layout = PromptLayout.of(
                prompt.ids[: system.end].tolist(),
                [prompt.ids[segment.start : segment.end].tolist()],
                self.instruction,
                uncached=[case.segments[0] is None, False],
                device=prompt.ids.device,
            )
            scores = attention_scores(
                case.decoder,
                layout,
                [case.segments[0], stored],
                _Digest(),
                ScratchKV(case.decoder, layout.tokens),
            )
            inside = scores[:, system.end : system.end + segment.tokens]
            wanted = math.ceil(self.digest * segment.tokens)
            found.append([segment.start + stable_topk(of_layer, wanted) for of_layer in inside])
        return found or [[prompt.question_rows[:0]] * case.decoder.layers]


def _largest(weights: Tensor, rows: Tensor) -> Tensor:
    """The largest attention over heads and rows: `[heads, m, n]` → `[n]`."""
    return weights.amax((0, 1))


@dataclass(frozen=True)
class _Digest(TwoPassMethod):
    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        return _largest


@dataclass(frozen=True, eq=False)
class _Online(TwoPassMethod):
    ratio: float
    layers: Sequence[int]
    anchors: Sequence[Tensor]

    def question_pass_layers(self, layers: int) -> range:
        return range(self.layers[0], self.layers[-1] + 1)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        return _largest if layer in self.layers else lambda weights, rows: None

    def sight(self, layout: PromptLayout) -> Sight:
        system = layout.all_rows[: layout.segments[0].end]
        return Sight(seen=lambda layer: union(system, self.anchors[layer], layout.question_rows))

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        wanted = floor_share(len(candidates), self.ratio)
        return candidates[stable_topk(scores[candidates], wanted)]
