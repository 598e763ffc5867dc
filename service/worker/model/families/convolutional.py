"""Hybrids whose mixers are short convolutions with gates, which keep their last inputs: LFM2."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.model.families.experts import ExpertsModel
from kvstitch.service.worker.model.families.hybrid import Hybrid, MixerRows
from kvstitch.service.worker.model.mixer_state import FirstRows, MixerShape


class Lfm2(Hybrid):
    """LFM2: short convolutions in most layers; norms of query and key heads in the others."""

    last_norm = "embedding_norm"

    def mixer_shape(self, config: Any) -> MixerShape:
        # As large as a state can be that has no heads.
        return MixerShape(0, 1, 1, int(config.conv_L_cache) - 1, self.hidden, 0, scalar=True)

    def mixer_of(self, block: Any) -> Any:
        return block.mixer

    def feed_weights(self, block: Any) -> int:
        return 3 * int(block.mlp.gate_proj.weight.numel())

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        return super().order_blocks([_named_as_llamas(block) for block in blocks])

    def convolution(self, net: Any) -> tuple[Tensor, Tensor | None, bool]:
        return net.conv.weight, net.conv.bias, False

    def mixer_rows(self, net: Any, projected: Tensor) -> MixerRows:
        first, gate, x = projected.chunk(3, -1)
        return MixerRows(first * x, (gate,))

    def apply_rule(
        self, net: Any, own: MixerRows, mixed: Tensor, sums: Tensor, *, step: bool
    ) -> tuple[Tensor, Tensor]:
        return mixed, sums

    def first_rows(self, net: Any, own: MixerRows, mixed: Tensor) -> FirstRows:
        nothing = mixed.new_empty(len(mixed), 0)
        return FirstRows(nothing, nothing[..., None], nothing[..., None])

    def mixer_output(self, net: Any, own: MixerRows, read: Tensor) -> Tensor:
        gate = own.beside[0]
        return gate * read.to(gate.dtype)


class Lfm2Moe(ExpertsModel, Lfm2):
    """LFM2 with experts, but for the first layers."""

    rotary = "pos_emb"

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        config = self.config
        scores = cpu_linear.linear(x, mlp.gate.weight, batch=batch).sigmoid()
        biased = scores + mlp.expert_bias if config.use_expert_bias else scores
        chosen = biased.topk(int(config.num_experts_per_tok), dim=-1).indices
        weights = scores.gather(1, chosen)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
        return chosen, weights * float(config.routed_scaling_factor)


def _named_as_llamas(block: Any) -> Any:
    """Return a layer of LFM2 with the names that Llama's modules have."""
    feed = block.feed_forward
    if not hasattr(feed, "experts"):
        feed = SimpleNamespace(
            gate_proj=feed.w1, up_proj=feed.w3, down_proj=feed.w2, act_fn=F.silu
        )  # fmt: skip
    attends, attention = block.is_attention_layer, None
    if attends:
        own = block.self_attn
        attention = SimpleNamespace(
            q_proj=own.q_proj, k_proj=own.k_proj, v_proj=own.v_proj, o_proj=own.out_proj,
            q_norm=own.q_layernorm, k_norm=own.k_layernorm,
        )  # fmt: skip
    return SimpleNamespace(
        input_layernorm=block.operator_norm, post_attention_layernorm=block.ffn_norm,
        self_attn=attention, mixer=None if attends else block.conv, mlp=feed,
    )  # fmt: skip
