"""Mistral: as Llama, with a sliding window in every layer where the config has one."""

from __future__ import annotations

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.rules import every_layer_slides


class Model(DecoderModel):
    family = "mistral"

    def attention_rules(self) -> list[AttentionRule]:
        return every_layer_slides(self.config)
