"""Mixtral: every MLP is several experts, whose probabilities are normalised in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.experts import ExpertsModel
from service.worker.model.decoder.rules import every_layer_slides


class Model(ExpertsModel):
    family = "mixtral"

    def expert_width(self) -> int:
        return int(self.config.intermediate_size)

    def router_weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        return chosen / chosen.sum(-1, keepdim=True)

    def attention_rules(self) -> list[AttentionRule]:
        return every_layer_slides(self.config)
