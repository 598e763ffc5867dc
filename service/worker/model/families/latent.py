"""Families with multi-head latent attention: what is kept of a token is one row for all heads,
its compressed latent and a part of the key that is rotated.

    key of a head    = [ W_k · latent | rotated part ]        value of a head = W_v · latent

W_k is applied to the queries and W_v to what was attended instead, so that all query heads attend
to the same row: there is one KV head. A row's values are its own latent, that is, the key before
it is rotated. So a chunk stores one tensor per layer (`values_are_keys`), whose rotated part moves
with the chunk's place while the latent stays.

    row    [ rotated, left │ latent, first half │ rotated, right │ latent, second half ]

The dimensions that turn together stand half a row apart, as in every other family here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.model.families.experts import (
    SharedExperts,
    balanced_route,
    of_best_groups,
)
from kvstitch.service.worker.model.projection import LayerProjections, Projection, fuse, norm


@dataclass(frozen=True)
class LatentQKV:
    """The projection to queries of every head and to a row, each `[rotated + latent]`."""

    query: tuple[Projection, Any, Projection] | Projection  # with a compression and its norm
    row: Projection
    row_norm: Any
    to_latent: Tensor  # W_k of every head `[heads, head_dim without rotation, latent]`
    interleaved: bool  # whether neighbouring dimensions turn together in the checkpoint

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        heads, still, latent = self.to_latent.shape
        if isinstance(self.query, tuple):
            first, between, then = self.query
            q = then(norm(between, first(x, batch=batch)), batch=batch)
        else:
            q = self.query(x, batch=batch)
        q = q.view(len(x), heads, -1)
        own = self.row(x, batch=batch)
        compressed, turned = norm(self.row_norm, own[:, :latent]), own[:, latent:]
        out = x.new_empty(len(x), heads + 2, latent + turned.shape[1])
        self._fill(out[:, :heads], by_head(q[..., :still], self.to_latent, batch), q[..., still:])
        self._fill(out[:, heads], compressed, turned)
        out[:, heads + 1] = out[:, heads]
        return out.flatten(1)

    def _fill(self, out: Tensor, latent: Tensor, turned: Tensor) -> None:
        """Write a row `[..., rotated + latent]` in the order of dimensions above."""
        half, middle = turned.shape[-1] // 2, latent.shape[-1] // 2
        left, right = turned[..., :half], turned[..., half:]
        if self.interleaved:
            left, right = turned[..., ::2], turned[..., 1::2]
        parts = (left, latent[..., :middle], right, latent[..., middle:])
        torch.cat(parts, -1, out=out) if out.is_contiguous() else out.copy_(torch.cat(parts, -1))


@dataclass(frozen=True)
class LatentOutput:
    """The output projection of what every head attended, rows `[heads * head_dim]`."""

    to_value: Tensor  # W_v of every head `[heads, head_dim, value]`; 0 for rotated dimensions
    output: Projection

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        heads, width, _ = self.to_value.shape
        values = by_head(x.view(len(x), heads, width), self.to_value, batch)
        return self.output(values.flatten(1), batch=batch)


def by_head(x: Tensor, weights: Tensor, batch: bool) -> Tensor:
    """Multiply x `[m, heads, in]` by each head's weights `[heads, in, out]`; `batch` as in
    `DecoderModel`."""
    if batch and len(x) > 1:
        return torch.cat([by_head(row[None], weights, batch) for row in x])
    return torch.bmm(x.transpose(0, 1), weights).transpose(0, 1)


class DeepseekV2(SharedExperts):
    """DeepSeek-V2: multi-head latent attention, of which a compressed row per token is kept;
    experts of which some are shared, chosen within the best groups."""

    values_are_keys = True
    measured = False
    takes_adapters = False  # of what an adapter changes, projections here hold products
    interleaved = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scale = float(self.blocks[0].self_attn.scaling)

    def shared_width(self) -> int:
        return int(self.config.n_shared_experts or 0) * self.expert_width()

    def kv_shape(self, config: Any) -> tuple[int, int]:
        return 1, int(config.kv_lora_rank + config.qk_rope_head_dim)

    def rotary_order(self) -> Tensor | None:
        return None  # the projections write rows in that order

    @cached_property
    def attention_weights(self) -> tuple[int, int]:
        config, latent = self.config, int(self.config.kv_lora_rank)
        still, turned = int(config.qk_nope_head_dim), int(config.qk_rope_head_dim)
        query, first = self.heads * (still + turned), int(config.q_lora_rank or 0)
        query = first * (self.hidden + query) if first else self.hidden * query
        before = query + self.heads * still * latent + self.hidden * (latent + turned)
        return before, self.heads * int(config.v_head_dim) * (latent + self.hidden)

    def layer_projections(self, block: Any) -> LayerProjections:
        attention, config = block.self_attn, self.config
        weights = attention.kv_b_proj.weight.detach()
        weights = weights.view(self.heads, -1, int(config.kv_lora_rank))
        still = int(config.qk_nope_head_dim)
        query: Any = fuse(attention.q_proj) if attention.q_proj is not None else None
        if query is None:
            query = (fuse(attention.q_a_proj), attention.q_a_layernorm, fuse(attention.q_b_proj))
        qkv = LatentQKV(
            query, fuse(attention.kv_a_proj_with_mqa), attention.kv_a_layernorm,
            weights[:, :still].contiguous(), self.interleaved,
        )  # fmt: skip
        half, middle = int(config.qk_rope_head_dim) // 2, int(config.kv_lora_rank) // 2
        values = weights[:, still:].transpose(1, 2)
        to_value = values.new_zeros(self.heads, self.head_dim, values.shape[2])
        to_value[:, half : half + middle] = values[:, :middle]
        to_value[:, 2 * half + middle :] = values[:, middle:]
        output = LatentOutput(to_value, fuse(attention.o_proj))
        return LayerProjections(qkv, output, *self.mlp_projections(block.mlp))

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        scores = cpu_linear.linear(x.float(), mlp.gate.weight.float(), batch=batch).softmax(-1)
        if self.config.topk_method == "group_limited_greedy":
            scores = of_best_groups(self.config, scores, 1, hidden=0.0)
        top = scores.topk(int(self.config.num_experts_per_tok), dim=-1)
        return top.indices, top.values * float(self.config.routed_scaling_factor)


class DeepseekV3(DeepseekV2):
    """DeepSeek-V3 and R1: DeepSeek-V2 with experts chosen by sigmoids and a bias that was learnt
    to balance them."""

    def __init__(self, model: Any) -> None:
        self.interleaved = bool(getattr(model.config, "rope_interleave", True))
        super().__init__(model)

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        return balanced_route(self.config, mlp.gate, x, batch)


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash: DeepSeek-V3's attention and experts in a smaller model."""
