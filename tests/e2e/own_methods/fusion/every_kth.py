"""Recomputes every k-th token of every document: a dense method of the operator's own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.worker.methods.api import DenseMethod, PromptLayout, parameter, union


@dataclass(frozen=True)
class Method(DenseMethod):
    """Recompute every k-th document token, whatever the question is."""

    every: int = parameter(4, "one token in this many", ge=1)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        step = min(self.every, layout.tokens)
        return union(layout.cached_document_rows[::step], layout.question_rows)
