"""What all Gemma models share: scaled embeddings, and norms that add one to their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from service.worker.model.attention_rule import AttentionRule
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.norms import norm
from service.worker.model.decoder.rules import by_layer_types


class GemmaModel(DecoderModel):
    has_plain_layers = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Rounded to the weights' dtype, as the model was trained.
        self._embedding: Tensor = model.get_input_embeddings().embed_scale.to(self.dtype)

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * self._embedding


class SlidingGemmaModel(GemmaModel):
    """Gemma 2 and 3: norms before and behind attention and MLP, some layers with a window."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scale = float(self.config.query_pre_attn_scalar) ** -0.5

    def attention_rules(self) -> list[AttentionRule]:
        cap = getattr(self.config, "attn_logit_softcapping", None)
        rules = by_layer_types(self.config)
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
