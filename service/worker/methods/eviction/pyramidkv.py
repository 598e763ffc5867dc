"""PyramidKV: entries for unprotected tokens fall linearly from 2b - ⌊b/β⌋ at layer 0 to ⌊b/β⌋ at
the last layer, with mean b, rounded by largest remainder (the public code overspends).

Source: docs/specification.md §2.4; Cai et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import PromptAttention
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.scores import apportion, exact


@dataclass(frozen=True)
class Method(SnapKV):
    """SnapKV's ranking with a budget that falls linearly from the first layer to the last; the
    mean over layers is the budget."""

    beta: float = parameter(20.0, "the last layer chooses 1/beta of the mean", ge=1)

    def layer_room(self, prompt: PromptAttention, room: int, competitors: int) -> int:
        if prompt.layout.tokens < 2 * room:
            return room  # the prompt is too short for a slope: every layer keeps as many, as SnapKV
        layers = prompt.model.layers
        last = int(room / exact(self.beta))
        first = 2 * room - last
        if first > competitors:
            first, last = competitors, 2 * room - competitors
        # The line multiplied by layers - 1, so that all values are whole numbers.
        line = [first * (layers - 1) - layer * (first - last) for layer in range(layers)]
        return apportion(line, layers * room, [competitors] * layers)[prompt.layer]
