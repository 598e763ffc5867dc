"""Command R7B and Command A: Command R with sliding windows in three of four layers, and no RoPE in
the fourth."""

from __future__ import annotations

from service.worker.model.attention_rule import PLAIN, AttentionRule
from service.worker.model.decoder.rules import by_layer_types
from service.worker.model.families import cohere
from service.worker.model.rope import RotaryTable


class Model(cohere.Model):
    family = "cohere2"

    def rotary_tables(self) -> list[RotaryTable]:
        tables = super().rotary_tables()
        none = RotaryTable.none(tables[0])
        return [
            none if rule is PLAIN else table
            for rule, table in zip(self.attention_rules(), tables, strict=True)
        ]

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
