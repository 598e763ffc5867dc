"""HeadKV-R and HeadKV-R2: of a mean budget b a query head gets b - b/β entries, and a share of the
pool of all b/β by a score that is measured once per model (`kvstitch tune`); a KV head gets the
mean of its query heads. Rounded by largest remainder over all layers and heads, where the public
code overspends.

Source: docs/specification.md §2.6; Fu et al. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.model_fingerprint import CALIBRATION_FILE
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import PromptAttention
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.scores import apportion, exact
from kvstitch.service.worker.model.model_facts import ModelFacts


@dataclass(frozen=True)
class Method(SnapKV):
    """SnapKV's ranking; heads that were measured to retrieve or reason keep more, in fixed
    proportions per model. The mean over layers and heads is the budget. Needs the model's
    calibration file."""

    window: int = parameter(8, "last prompt queries that score, at most the question", ge=1)
    variant: str = parameter(
        "R2",
        "R: heads that copy the answer; R2: heads that look at its passage",
        choices=("R", "R2"),
    )
    beta: float = parameter(1.5, "1/beta of the budget is shared by head scores; 1: all", ge=1)

    def check(self, model: ModelFacts) -> None:
        if self.variant not in model.head_scores:
            raise InvalidRequest(
                f"eviction.method headkv needs {CALIBRATION_FILE} with head scores "
                f"{self.variant} in the data folder or the model's: make it with `kvstitch tune` "
                "and restart",
                field="eviction.method",
            )

    def head_rooms(self, prompt: PromptAttention, scores: Tensor, room: int) -> Sequence[int]:
        kv_heads, competitors = scores.shape
        measured = prompt.model.head_scores[self.variant]
        group = measured.shape[1] // kv_heads
        kv_head_scores = measured.double().view(-1, group).sum(1).tolist()
        rooms = _shares(tuple(kv_head_scores), room, competitors, self.beta)
        return rooms[prompt.layer * kv_heads : (prompt.layer + 1) * kv_heads]


@lru_cache(maxsize=8)  # every layer of a prompt needs the same table
def _shares(scores: tuple[float, ...], room: int, competitors: int, beta: float) -> list[int]:
    """Return entries of every (layer, KV head), in the order of `scores`; their mean is `room`."""
    pooled = 1 / exact(beta)
    mean = sum(scores) / len(scores)
    needs = [pooled * exact(s) + (1 - pooled) * exact(mean) for s in scores]
    return apportion(needs, room * len(scores), [competitors] * len(scores))
