"""Families whose layers are Llama's, or nearly."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder import DecoderModel
from service.worker.model.layer_weights import norm
from service.worker.model.projection import Projection, fuse
from service.worker.model.rope import RotaryTable


class Llama(DecoderModel):
    """Llama 2 and 3, and models of that architecture (Falcon 3, SmolLM, TinyLlama, the demo
    model)."""


class Mistral(DecoderModel):
    """Mistral: as Llama, with a sliding window in every layer where the config has one."""


class Ministral(DecoderModel):
    """Ministral: Mistral with sliding windows in some layers."""


class Qwen2(DecoderModel):
    """Qwen2 and Qwen2.5: q, k and v projections have biases, keys are stored with theirs added."""


class Qwen3(DecoderModel):
    """Qwen3: an RMSNorm on every query and key head; keys are stored after it and before RoPE."""

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)


class SmolLM3(DecoderModel):
    """SmolLM3: Llama, with some layers that do not rotate queries and keys."""

    has_plain_layers = False

    def rotary_tables(self) -> list[RotaryTable]:
        # 1 in `no_rope_layers`: rotates, as its name does not say
        return self.rotated_only(super().rotary_tables(), map(bool, self.config.no_rope_layers))


class Phi3(DecoderModel):
    """Phi-3, Phi-3.5 and Phi-4: the checkpoint holds fused projections. Phi-4-mini, of
    whose heads a part is rotated, decodes layer by layer."""

    def qkv_projection(self, attention: Any) -> Projection:
        return fuse(attention.qkv_proj)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection]:
        return fuse(mlp.gate_up_proj), fuse(mlp.down_proj)


class Granite(DecoderModel):
    """Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

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
