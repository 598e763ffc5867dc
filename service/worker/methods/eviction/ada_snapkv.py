"""Ada-SnapKV: the best kv_heads · b pooled scores of all heads together show how many entries each
head would win; a head gets (1-α) times its wins plus α·b, rounded by largest remainder over the
layer (the paper's code floors and drifts from the budget). Scores are not normalised per head.

Source: docs/specification.md §2.5; Feng et al. 2024 (AdaKV).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import PromptAttention
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.scores import apportion, exact, stable_topk


@dataclass(frozen=True)
class Method(SnapKV):
    """SnapKV's ranking; within a layer, heads with many high scores keep more than heads with few.
    The mean over heads is the budget."""

    alpha: float = parameter(
        0.2, "share of the budget that every head gets whatever its scores; 1: SnapKV", ge=0, le=1
    )

    def head_rooms(self, prompt: PromptAttention, scores: Tensor, room: int) -> Sequence[int]:
        heads, competitors = scores.shape
        # Flattened token by token, so that tied scores go to the heads in turn and heads with equal
        # scores get equal shares.
        winners = stable_topk(scores.T.flatten(), heads * room) % heads
        wins = torch.bincount(winners, minlength=heads).tolist()
        floor = exact(self.alpha)
        needs = [(1 - floor) * n + floor * room for n in wins]
        return apportion(needs, heads * room, [competitors] * heads)
