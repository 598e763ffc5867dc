"""A fusion method outside the tree."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod


@dataclass(frozen=True)
class Method(DenseMethod):
    """Computes the last rows anew, whatever they are."""

    rows: int = parameter(8, "rows that are computed anew", ge=1, le=64)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows[-self.rows :]
