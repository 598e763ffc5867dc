"""StreamingLLM (METHODS §2.1; Xiao et al. 2023): attention sinks and the most recent tokens.

Entries keep their original positions (as in the public re-implementations). The paper instead
numbers what is kept 0..B-1 and rotates the keys anew, so that a stream may grow beyond the model's
context; a prompt here never does, so that is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.layer_view import LayerView
from service.worker.methods.bases.eviction import EvictionMethod, PromptAttention


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
        """Index, so that the last win; the sinks are lifted above all, the first one highest."""
        n = prompt.layout.tokens
        index = prompt.layout.all_rows
        score = torch.where(index < min(self.sinks, n), 2 * n - index, index)
        return score.expand(prompt.k.shape[0], n)
