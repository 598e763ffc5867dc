"""How a layer's attention differs from plain causal attention: window, soft cap, sinks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionRule:
    """What a layer adds to causal attention by position."""

    window: int | None = None  # the row at t sees only keys j > t - window; None: all up to its own
    # scores s become soft_cap * tanh(s / soft_cap) before the mask; None: they stay
    soft_cap: float | None = None
    # a logit per query head `[heads]` fp32 that takes part in the softmax and has no value, so that
    # a head's weights sum to less than 1; None: no such logit
    sinks: Tensor | None = None

    @property
    def plain_weights(self) -> bool:
        """Whether the weights of the visible keys are a softmax of the scaled scores."""
        return self.soft_cap is None and self.sinks is None

    def of_heads(self, heads: slice) -> AttentionRule:
        """Return the rule for some query heads."""
        return self if self.sinks is None else replace(self, sinks=self.sinks[heads])

    def narrows(self, span: int) -> bool:
        """Return whether a row may not see all earlier keys, where keys lie in `span` positions."""
        return self.window is not None and span > self.window

    def capped(self, scores: Tensor) -> Tensor:
        """Return the scores after the soft cap."""
        if self.soft_cap is None:
            return scores
        return scores.div(self.soft_cap).tanh_().mul_(self.soft_cap)

    def hidden(self, keys: Tensor, rows: Tensor) -> Tensor:
        """Return which keys rows do not see: positions `[n]` and `[m]` → `[m, n]` bool."""
        later = keys > rows[:, None]
        return later if self.window is None else later | (keys <= rows[:, None] - self.window)

    def softmax(self, scores: Tensor) -> Tensor:
        """Return weights of masked fp32 scores `[kv_heads, group, m, n]`; 0 for a row without
        keys."""
        if self.sinks is not None:
            kv_heads, group, m, _ = scores.shape
            sink = self.sinks.view(kv_heads, group, 1, 1).expand(-1, -1, m, 1)
            return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        weights = scores.softmax(-1)
        return weights if self.window is None else weights.nan_to_num_(0.0)


PLAIN = AttentionRule()
