"""Full prefill: what every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from service.worker.core.layout import PromptLayout
from service.worker.methods.fusion.base import FusionMethod


@dataclass(frozen=True)
class Method(FusionMethod):
    """Full prefill of the prompt; no cache is used."""

    reads_cache: ClassVar[bool] = False

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows
