"""Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "granite"
    has_plain_layers = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scale = float(self.config.attention_multiplier)

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * self.config.embedding_multiplier

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        return attended * self.config.residual_multiplier

    def mlp_residual(self, block: Any, out: Tensor) -> Tensor:
        return out * self.config.residual_multiplier

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return super().logits(x, batch=batch) / self.config.logits_scaling
