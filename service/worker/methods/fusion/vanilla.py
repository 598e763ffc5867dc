"""Full prefill, with which every other method is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import Reads


@dataclass(frozen=True)
class Method(DenseMethod):
    """Full prefill of the prompt; no cache is used."""

    passes_states: ClassVar[bool] = True
    reads: ClassVar[Reads] = Reads.NOTHING

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows
