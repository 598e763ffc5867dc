"""Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder.base import DecoderModel


class Model(DecoderModel):
    family = "granite"
    has_plain_layers = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = self.config
        self.scale = float(config.attention_multiplier)
        self._embedding = float(config.embedding_multiplier)
        self._residual = float(config.residual_multiplier)
        self._logits = float(config.logits_scaling)

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * self._embedding

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        return attended * self._residual

    def mlp_residual(self, block: Any, out: Tensor) -> Tensor:
        return out * self._residual

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return super().logits(x, batch=batch) / self._logits
