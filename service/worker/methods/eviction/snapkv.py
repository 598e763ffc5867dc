"""SnapKV: keeps the tokens that the last prompt queries attend to (docs/specification.md §2.3; Li
et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from kvstitch.service.worker.methods.scores import max_pool


@dataclass(frozen=True)
class Method(EvictionMethod):
    """Window attention, group mean, max-pooled over neighbours, top of the budget per KV head.

    After `fusion.method` a3 this is the paper's A3(ex)."""

    window: int = parameter(32, "last prompt queries that score, at most the question", ge=1)
    kernel: int = parameter(7, "width of the max-pool over neighbouring tokens, odd", ge=1)

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise InvalidRequest(
                f"eviction.kernel must be odd, not {self.kernel}", field="eviction.kernel"
            )

    @property
    def window_rows(self) -> int:
        return self.window

    def score(self, prompt: PromptAttention) -> Tensor:
        weights = prompt.query_attention().mean(1)
        # The window is always kept; pooling must not spread its large weights over the tokens
        # before it.
        weights[:, -len(prompt.observed) :] = 0
        return max_pool(weights, self.kernel)
