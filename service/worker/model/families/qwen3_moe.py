"""Qwen3 with experts (30B-A3B, 235B-A22B): norms on query and key heads, and some dense layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.experts import ExpertsModel
from service.worker.model.decoder.norms import norm
from service.worker.model.decoder.rules import every_layer_slides


class Model(ExpertsModel):
    family = "qwen3_moe"

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)

    def attention_rules(self) -> list[AttentionRule]:
        return every_layer_slides(self.config)
