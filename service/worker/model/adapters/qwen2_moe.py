"""Qwen1.5 and Qwen2 with experts: biases on q, k and v, and one expert more that all rows share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.core.steps import Steps
from service.worker.kernels.cpu import cpu_linear
from service.worker.model.adapters.base import activation_of
from service.worker.model.adapters.experts import ExpertsAdapter
from service.worker.model.adapters.fused_linear import FusedLinear


class Adapter(ExpertsAdapter):
    family = "qwen2_moe"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.intermediate += int(self.config.shared_expert_intermediate_size)

    def fused_mlp(self, mlp: Any) -> FusedLinear | None:
        if hasattr(mlp, "experts"):
            return super().fused_mlp(mlp.shared_expert)
        return super().fused_mlp(mlp)

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp, gate_up = self.blocks[layer].mlp, self._gate_up[layer]
        routed = yield from super().mlp(layer, x, batch)
        if not hasattr(mlp, "experts"):
            return routed
        assert gate_up is not None
        shared = mlp.shared_expert
        both = cpu_linear.linear(x, gate_up.weight, gate_up.bias, batch=batch)
        gate, up = both.chunk(2, dim=-1)
        inner = activation_of(shared)(gate).mul_(up)
        out = cpu_linear.linear(inner, shared.down_proj.weight, batch=batch)
        share = cpu_linear.linear(x, mlp.shared_expert_gate.weight, batch=batch).sigmoid()
        return routed + share * out
