"""SmolLM3: Llama, with some layers that do not rotate queries and keys."""

from __future__ import annotations

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.rules import by_layer_types
from service.worker.model.rope import RotaryTable


class Model(DecoderModel):
    family = "smollm3"
    has_plain_layers = False

    def rotary_tables(self) -> list[RotaryTable]:
        tables = super().rotary_tables()
        none = RotaryTable.none(tables[0])
        rotated = self.config.no_rope_layers  # 1: rotates, as its name does not say
        return [table if r else none for table, r in zip(tables, rotated, strict=True)]

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
