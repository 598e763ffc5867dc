"""OLMo's families, which normalise behind attention and MLP."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder import DecoderModel, norm
from service.worker.model.rope import RotaryTable


class Olmo2(DecoderModel):
    """OLMo 2: norms behind attention and MLP, not before, and over all query or key heads at
    once."""

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


class Olmo3(Olmo2):
    """OLMo 3: OLMo 2 with sliding windows in three of four layers, and RoPE by kind of layer."""

    def rotary_tables(self) -> list[RotaryTable]:
        return self.rotary_tables_by_type()
