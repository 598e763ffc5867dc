"""Qwen1.5 and Qwen2 with experts: biases on q, k and v, and one expert more that all rows share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.kernels.cpu import cpu_linear
from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel, activation_of
from service.worker.model.decoder.experts import ExpertsModel
from service.worker.model.decoder.projection import Projection
from service.worker.model.decoder.rules import by_layer_types
from service.worker.steps import Steps


class Model(ExpertsModel):
    family = "qwen2_moe"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.intermediate += int(self.config.shared_expert_intermediate_size)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection] | None:
        # Past ExpertsAdapter, which has no projections for a layer with experts.
        return DecoderModel.mlp_projections(self, getattr(mlp, "shared_expert", mlp))

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp, projections = self.blocks[layer].mlp, self.projections[layer]
        routed = yield from super().mlp(layer, x, batch)
        if not hasattr(mlp, "experts"):
            return routed
        assert projections.gate_up is not None and projections.down is not None
        gate, up = projections.gate_up(x, batch=batch).chunk(2, dim=-1)
        inner = activation_of(mlp.shared_expert)(gate).mul_(up)
        out = projections.down(inner, batch=batch)
        share = cpu_linear.linear(x, mlp.shared_expert_gate.weight, batch=batch).sigmoid()
        return routed + share * out

    def attention_rules(self) -> list[AttentionRule]:
        return by_layer_types(self.config)
