"""OLMo 2: norms behind attention and MLP, not before, and over all query or key heads at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.norms import norm


class Model(DecoderModel):
    family = "olmo2"
    has_plain_layers = False

    def attention_input(self, block: Any, x: Tensor) -> Tensor:
        return x

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        wide_q, wide_k = norm(attention.q_norm, q.flatten(1)), norm(attention.k_norm, k.flatten(1))
        return wide_q.view(q.shape), wide_k.view(k.shape)

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        return norm(block.post_attention_layernorm, attended)

    def mlp_input(self, block: Any, x: Tensor) -> Tensor:
        return x

    def mlp_residual(self, block: Any, out: Tensor) -> Tensor:
        return norm(block.post_feedforward_layernorm, out)
