"""Gemma 3, text only: sliding windows in five of six layers, which have a RoPE of their own; norms
of query and key heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder.gemma_layers import SlidingGemmaModel
from service.worker.model.decoder.norms import norm
from service.worker.model.rope import RotaryTable


class Model(SlidingGemmaModel):
    family = "gemma3_text"

    def rotary_tables(self) -> list[RotaryTable]:
        return self.rotary_tables_by_type()

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)
