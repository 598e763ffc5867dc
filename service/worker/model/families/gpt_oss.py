"""gpt-oss: experts with biases and a clamped SwiGLU, a sliding window in every other layer, and a
sink per head that takes part in every softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import cpu_linear
from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.experts import ExpertsModel
from service.worker.model.decoder.rules import by_layer_types


class Model(ExpertsModel):
    family = "gpt_oss"

    def __init__(self, model: Any) -> None:
        for block in model.model.layers:
            for weights in (block.mlp.experts.gate_up_proj, block.mlp.experts.down_proj):
                _store_by_output(weights)
        super().__init__(model)

    def expert_width(self) -> int:
        return int(self.config.intermediate_size)

    def attention_rules(self) -> list[AttentionRule]:
        return [
            replace(rule, sinks=block.self_attn.sinks.detach().float())
            for rule, block in zip(by_layer_types(self.config), self.blocks, strict=True)
        ]

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        router = cpu_linear.linear(x, mlp.router.weight, mlp.router.bias, batch=batch)
        top = router.topk(self.config.num_experts_per_tok, dim=-1)
        return top.indices, top.values.softmax(-1)

    def expert(self, experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
        both = cpu_linear.linear(
            x, experts.gate_up_proj[number].t(), experts.gate_up_proj_bias[number], batch=batch
        )
        limit = float(self.config.swiglu_limit)
        gate = both[..., ::2].clamp(max=limit)
        up = both[..., 1::2].clamp(-limit, limit)
        inner = (up + 1) * (gate * torch.sigmoid(gate * self.config.swiglu_alpha))
        return cpu_linear.linear(
            inner, experts.down_proj[number].t(), experts.down_proj_bias[number], batch=batch
        )


def _store_by_output(weights: Any) -> None:
    """Lays `[experts, in, out]` out in memory as the kernels read weights: output by output."""
    weights.data = weights.data.transpose(1, 2).contiguous().transpose(1, 2)
