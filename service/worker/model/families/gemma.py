"""Gemma's families: scaled embeddings, and norms that add one to their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder import DecoderModel, norm
from service.worker.model.rope import RotaryTable


class Gemma(DecoderModel):
    """Gemma 1: Llama with scaled embeddings, GELU, and norms that add one to their weights."""

    has_plain_layers = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Rounded to the weights' dtype, as the model was trained.
        self._embedding: Tensor = model.get_input_embeddings().embed_scale.to(self.dtype)

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * self._embedding


class Gemma2(Gemma):
    """Gemma 2: more norms, soft caps of scores and logits, a sliding window in every other
    layer."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scale = float(self.config.query_pre_attn_scalar) ** -0.5

    def attention_rules(self) -> list[AttentionRule]:
        cap = getattr(self.config, "attn_logit_softcapping", None)
        rules = super().attention_rules()
        return rules if cap is None else [replace(rule, soft_cap=float(cap)) for rule in rules]

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        return norm(block.post_attention_layernorm, attended)

    def mlp_input(self, block: Any, x: Tensor) -> Tensor:
        return norm(block.pre_feedforward_layernorm, x)

    def mlp_residual(self, block: Any, out: Tensor) -> Tensor:
        return norm(block.post_feedforward_layernorm, out)

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        logits, cap = super().logits(x, batch=batch), self.config.final_logit_softcapping
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


class Gemma3(Gemma2):
    """Gemma 3, text only: sliding windows in five of six layers, which have a RoPE of their own;
    norms of query and key heads."""

    def rotary_tables(self) -> list[RotaryTable]:
        return self.rotary_tables_by_type()

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)
