"""LegoLink: recomputes the first and last tokens of every document, which precomputing a document
without its context damages most. Nothing is scored.

Source: docs/specification.md §1.4; Hu et al., "EPIC: Efficient Position-Independent Caching".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.model.mixer_state import FIRST_ROWS
from kvstitch.service.worker.model.model_facts import ModelFacts


@dataclass(frozen=True)
class Method(DenseMethod):
    """Recompute the first and last tokens of every document at all layers."""

    passes_states: ClassVar[bool] = True

    first: int = parameter(20, "tokens at each document's start", ge=0, stateful=FIRST_ROWS)
    last: int = parameter(20, "tokens at each document's end", ge=0, stateful=0)
    skip_first_doc: bool = parameter(
        False, "leave the first document as stored (right if it is exact: prefix_mode system)"
    )

    def check(self, model: ModelFacts) -> None:
        if model.stateful and (self.first > FIRST_ROWS or self.last):
            name = "last" if self.last else "first"
            raise InvalidRequest(
                f"fusion.first must be at most {FIRST_ROWS} and fusion.last 0 for this model, "
                "whose layers keep a state, which passes through first rows alone",
                field=f"fusion.{name}",
            )

    def start_rows(self, layout: PromptLayout) -> Tensor:
        filled = [segment for segment in layout.documents if segment.tokens]
        documents = filled[1:] if self.skip_first_doc else filled
        rows = [layout.question_rows]
        for segment in documents:
            document_rows = torch.arange(segment.start, segment.end, device=layout.ids.device)
            first, last = min(self.first, segment.tokens), min(self.last, segment.tokens)
            rows += [document_rows[:first], document_rows[segment.tokens - last :]]
        return torch.cat(rows)
