"""Families all of whose MLPs are dense: those like Llama, then those with other norms (Cohere,
Gemma, OLMo)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule
from kvstitch.service.worker.model.projection import Projection, fuse, norm
from kvstitch.service.worker.model.rope import RotaryTable, halves_order
from kvstitch.service.worker.steps import Steps


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


class Cohere(DecoderModel):
    """Command R: LayerNorm without bias, attention and MLP side by side, RoPE on neighbouring
    dimensions, scaled logits."""

    has_plain_layers = False

    def rotary_order(self) -> Tensor | None:
        return halves_order(self.head_dim, rotated=self.head_dim, interleaved=True)

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        projected = self.projections[layer].output(attended, batch=batch)
        beside = yield from self.mlp(layer, self.attention_input(self.blocks[layer], x), batch)
        return x + projected + beside

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return super().logits(x, batch=batch) * float(self.config.logit_scale)


class Cohere2(Cohere):
    """Command R7B and Command A: Command R with sliding windows in three of four layers, and no
    RoPE in the fourth."""

    def rotary_tables(self) -> list[RotaryTable]:
        slides = (rule is not PLAIN for rule in self.attention_rules())
        return self.rotated_only(super().rotary_tables(), slides)


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
        # Gemma 4 scales nothing.
        self.scale = float(getattr(self.config, "query_pre_attn_scalar", 1)) ** -0.5

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
