"""FullReuse: cached keys keep the positions at which they were precomputed (docs/specification.md
§1.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod


@dataclass(frozen=True)
class Method(DenseMethod):
    """Reuse as precomputed, positions not recovered; only the question is computed. A baseline
    that is expected to fail."""

    passes_states: ClassVar[bool] = True

    def key_positions(self, layout: PromptLayout) -> Tensor:
        positions = layout.all_rows.clone()
        for segment in layout.segments:
            positions[segment.start : segment.end] -= segment.start - segment.offset
        return positions
