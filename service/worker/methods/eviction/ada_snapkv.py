"""Ada-SnapKV (METHODS §2.5; Feng et al. 2024, AdaKV): heads share a layer's budget by need.

The top Hkv·b of all heads' pooled scores together say how many entries each head would win; a head
gets (1-α) of its wins and α·b. Real numbers until the end, then largest remainder (the paper's code
floors α·b, rounds, and drifts from the budget). Scores are not normalised per head (AdaKV's
setting). Heads of unequal length hold unequal memory; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.budget import apportion, exact
from service.worker.core.topk import stable_topk
from service.worker.methods.bases.eviction import PromptAttention
from service.worker.methods.eviction.snapkv import Method as SnapKV


@dataclass(frozen=True)
class Method(SnapKV):
    """SnapKV's ranking; within a layer, heads with many high scores keep more than heads with few.
    The mean over heads is the budget."""

    alpha: float = parameter(
        0.2, "share of the budget that every head gets whatever its scores; 1: SnapKV", ge=0, le=1
    )

    def head_rooms(self, prompt: PromptAttention, scores: Tensor, room: int) -> Sequence[int]:
        heads, competitors = scores.shape
        # Token-major: equal scores go to the heads in turn, so equal heads stay equal.
        winners = stable_topk(scores.T.flatten(), heads * room) % heads
        wins = torch.bincount(winners, minlength=heads).tolist()
        floor = exact(self.alpha)
        needs = [(1 - floor) * n + floor * room for n in wins]
        return apportion(needs, heads * room, [competitors] * heads)
