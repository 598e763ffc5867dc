"""Qwen3: an RMSNorm on every query and key head; keys are stored after it and before RoPE."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.norms import norm
from service.worker.model.decoder.rules import by_layer_types


class Model(DecoderModel):
    family = "qwen3"

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
