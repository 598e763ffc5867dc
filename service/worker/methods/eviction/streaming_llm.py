"""StreamingLLM: keeps attention sinks (the first tokens) and the most recent tokens, at their
original positions, as in public re-implementations; the paper renumbers them for endless streams.

Source: docs/specification.md §2.1; Xiao et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from kvstitch.service.worker.methods.layer_view import LayerView


@dataclass(frozen=True)
class Method(EvictionMethod):
    """Keep the first tokens of the prompt and the most recent ones; attention is not looked at."""

    sinks: int = parameter(4, "first tokens of the prompt that are kept, charged to budget", ge=0)

    @property
    def window_rows(self) -> int:
        """No query scores; the last row is kept as the most recent one."""
        return 1

    def observe(self, view: LayerView) -> Tensor:
        return view.q[:0]

    def score(self, prompt: PromptAttention) -> Tensor:
        """Return the token's index, so that the last tokens win; sinks score higher than all
        others."""
        n = prompt.layout.tokens
        index = prompt.layout.all_rows
        score = torch.where(index < min(self.sinks, n), 2 * n - index, index)
        return score.expand(prompt.k.shape[0], n)
