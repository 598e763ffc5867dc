"""OLMo 3: OLMo 2 with sliding windows in three of four layers, and RoPE by kind of layer."""

from __future__ import annotations

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.rules import by_layer_types
from service.worker.model.families import olmo2
from service.worker.model.rope import RotaryTable


class Model(olmo2.Model):
    family = "olmo3"

    def rotary_tables(self) -> list[RotaryTable]:
        return self.rotary_tables_by_type()

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
