"""Ministral: Mistral with sliding windows in some layers."""

from __future__ import annotations

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.rules import by_layer_types


class Model(DecoderModel):
    family = "ministral"

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
