"""Phi-3, Phi-3.5 and Phi-4: the checkpoint holds fused projections. Phi-4-mini, of
whose heads a part is rotated, decodes layer by layer."""

from __future__ import annotations

from typing import Any

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.projection import Projection, fuse
from service.worker.model.decoder.rules import every_layer_slides


class Model(DecoderModel):
    family = "phi3"

    def qkv_projection(self, attention: Any) -> Projection:
        return fuse(attention.qkv_proj)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection]:
        return fuse(mlp.gate_up_proj), fuse(mlp.down_proj)

    def attention_rules(self) -> list[AttentionRule]:
        return every_layer_slides(self.config)
