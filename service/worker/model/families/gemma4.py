"""Gemma 4, text: layers with sliding windows and without have heads of other numbers and widths.

Keys and values have one shape here, so heads of a layer lie side by side in as few as any layer
has, each as wide as the widest needs:

    a row of 2 heads    [ left half of head 0 │ of head 1 │ 0 │ right half of 0 │ of 1 │ 0 ]

A query has its own dimensions where its head has, and 0 elsewhere; the dimensions that turn
together stand half a row apart, as in every family. The last layers of some models have no keys
and values: they attend to an earlier layer's (`borrowed`), and nothing of them is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.model.families.dense import Gemma2
from kvstitch.service.worker.model.families.experts import expert_output, mixed_experts
from kvstitch.service.worker.model.model_facts import AttentionRule
from kvstitch.service.worker.model.projection import (
    DenseProjection,
    LayerProjections,
    Projection,
    fuse,
    norm,
)
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch.service.worker.steps import Steps

DIGIT = 128
"""Token ids go through the layers beside the hidden states, in digits that every dtype holds."""


@dataclass(frozen=True)
class HeadShape:
    """Heads of a layer, and where their dimensions are in a row."""

    kv_heads: int
    width: int
    places: Tensor  # of a query head's dimensions in its row `[heads, width]`


class Gemma4(Gemma2):
    """Gemma 4, text only: heads of sliding and other layers differ, layers add an embedding of
    their own of each token, the last ones read the keys and values of others, some have experts."""

    measured = False
    takes_adapters = False
    carried = 3

    def __init__(self, model: Any) -> None:
        self._shapes: list[HeadShape] = []
        self._gates: list[tuple[Projection, Projection]] = []
        super().__init__(model)
        config = self.config
        self._own = int(config.hidden_size_per_layer_input or 0)
        if self._own:
            projection = fuse(model.model.per_layer_model_projection)
            assert isinstance(projection, DenseProjection)
            self._to_own = projection.weight
            self._gates = [
                (fuse(block.per_layer_input_gate), fuse(block.per_layer_projection))
                for block in self.blocks
            ]

    def feed_weights(self, block: Any) -> int:
        config = self.config
        taken = config.enable_moe_block and config.top_k_experts * config.moe_intermediate_size
        return 3 * self.hidden * (self.intermediate + int(taken or 0))

    # -- layers -----------------------------------------------------------------------------------

    def kv_shape(self, config: Any) -> tuple[int, int]:
        each = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
        heads = min(int(c.num_key_value_heads) for c in each)
        if any(c.num_key_value_heads % heads for c in each):
            raise ModelRefused(
                f"numbers of KV heads of this {self.family} are no multiples of one another",
                field="model",
            )
        wide = max(int(c.num_key_value_heads) // heads * int(c.head_dim) for c in each)
        for c in each:
            self._shapes.append(self._head_shape(c, heads, wide))
        return heads, wide

    def _head_shape(self, config: Any, heads: int, wide: int) -> HeadShape:
        width, own = int(config.head_dim), int(config.num_key_value_heads)
        query = torch.arange(self.heads)
        beside = query // (self.heads // own) % (own // heads)  # heads before it in its row
        left = beside[:, None] * (width // 2) + torch.arange(width // 2)
        return HeadShape(own, width, torch.cat([left, left + wide // 2], 1))

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        kinds = self.config.layer_types
        self.layers = len(blocks) - int(self.config.num_kv_shared_layers)
        last = {kind: layer for layer, kind in enumerate(kinds[: self.layers])}
        self.borrowed = [last[kind] for kind in kinds[self.layers :]]
        return list(blocks)

    def layer_projections(self, block: Any) -> LayerProjections:
        attention = block.self_attn
        read = [attention.q_proj]
        if not attention.is_kv_shared_layer:
            read += [m for m in (attention.k_proj, attention.v_proj) if m is not None]
        qkv, output = fuse(*read), fuse(attention.o_proj)
        return LayerProjections(qkv, output, *self.mlp_projections(block.mlp))

    def rotary_tables(self) -> list[RotaryTable]:
        found: dict[str, RotaryTable] = {}
        rotary, kinds = self.model.model.rotary_emb, self.config.layer_types[: self.layers]
        for kind, shape in zip(kinds, self._shapes, strict=False):
            if kind in found:
                continue
            table = RotaryTable.of(
                self.config, rotary, self.max_context, self.device,
                head_dim=shape.width, layer_type=kind,
            )  # fmt: skip
            beside = shape.kv_heads // self.kv_heads
            rest = self.head_dim // 2 - beside * shape.width // 2
            table.cos = F.pad(table.cos.repeat(1, beside), (0, rest), value=1.0)
            table.sin = F.pad(table.sin.repeat(1, beside), (0, rest))
            found[kind] = table
        return [found[kind] for kind in kinds]

    def rotary_order(self) -> Tensor | None:
        return None  # rows are written in that order

    def attention_rules(self) -> list[AttentionRule]:
        return super().attention_rules()[: self.layers]

    # -- what the layer loops call ----------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        digits = [ids % DIGIT, ids // DIGIT % DIGIT, ids // DIGIT**2]
        return torch.cat([super().embed(ids), torch.stack(digits, -1).to(self.dtype)], -1)

    def attention_input(self, block: Any, x: Tensor) -> Tensor:
        return super().attention_input(block, x[:, : self.hidden])

    def qkv(self, layer: int, x: Tensor, *, batch: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        block, shape = self.blocks[layer], self._shapes[layer]
        out = self.projections[layer].qkv(self.attention_input(block, x), batch=batch)
        heads = out.view(len(x), -1, shape.width)
        q, k, v = heads.tensor_split([self.heads, self.heads + shape.kv_heads], 1)
        attention = block.self_attn
        k, v = norm(attention.k_norm, k), norm(attention.v_norm, v if v.shape[1] else k)
        return self._query_rows(layer, q), self._rows(shape, k), self._rows(shape, v)

    def query(self, layer: int, x: Tensor, *, batch: bool = False) -> Tensor:
        out = self.projections[layer].qkv(self.attention_input(self.blocks[layer], x), batch=batch)
        return self._query_rows(layer, out.view(len(x), self.heads, -1))

    def _query_rows(self, layer: int, q: Tensor) -> Tensor:
        """Return queries `[m, heads, width]` after their norm, as rows `[m, heads, head_dim]`."""
        q = norm(self.blocks[layer].self_attn.q_norm, q)
        out = q.new_zeros(len(q), self.heads, self.head_dim)
        return out.scatter_(2, self._places(layer, q), q)

    def _places(self, layer: int, x: Tensor) -> Tensor:
        return self._shapes[layer].places.to(x.device).expand(len(x), -1, -1)

    def _rows(self, shape: HeadShape, x: Tensor) -> Tensor:
        """Return keys or values `[m, kv_heads, width]` of a layer as rows."""
        beside = shape.kv_heads // self.kv_heads
        halves = x.reshape(len(x), self.kv_heads, beside, 2, -1).transpose(2, 3).flatten(3)
        rest = self.head_dim // 2 - halves.shape[-1]
        return F.pad(halves, (0, rest)).flatten(2)

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        block, hidden, digits = self.blocks[layer], x[:, : self.hidden], x[:, self.hidden :]
        rows = attended.view(len(x), self.heads, -1)
        own = rows.gather(2, self._places(layer, rows)).flatten(1)
        projected = self.projections[layer].output(own, batch=batch)
        hidden = hidden + self.attention_residual(block, projected)
        out = yield from self.mlp(layer, self.mlp_input(block, hidden), batch)
        if block.enable_moe_block:
            out = norm(block.post_feedforward_layernorm_1, out)
            out = out + (yield from self._routed(block, hidden, batch))
        hidden = hidden + self.mlp_residual(block, out)
        if self._own:
            gate, back = self._gates[layer]
            inner = block.act_fn(gate(hidden, batch=batch)) * self._own_input(layer, digits, batch)
            hidden = hidden + norm(block.post_per_layer_input_norm, back(inner, batch=batch))
        return torch.cat([hidden * block.layer_scalar, digits], -1)

    def _routed(self, block: Any, x: Tensor, batch: bool) -> Steps[Tensor]:
        """Return what the experts of a layer make of rows before their MLP."""
        router = block.router
        scaled = norm(router.norm, x) * router.scale * router.scalar_root_size
        scores = cpu_linear.linear(scaled, router.proj.weight, batch=batch)
        top = scores.softmax(-1, dtype=torch.float32).topk(int(self.config.top_k_experts), dim=-1)
        weights = top.values / top.values.sum(-1, keepdim=True)
        weights = weights * router.per_expert_scale[top.indices]
        expert = partial(expert_output, block.experts, batch=batch)
        inner = norm(block.pre_feedforward_layernorm_2, x)
        out = yield from mixed_experts(expert, inner, top.indices, weights)
        return norm(block.post_feedforward_layernorm_2, out)

    def _own_input(self, layer: int, digits: Tensor, batch: bool) -> Tensor:
        """Return a layer's own embedding of tokens, given by their digits."""
        low, middle, high = digits.long().unbind(-1)
        ids, model = low + DIGIT * (middle + DIGIT * high), self.model.model
        cut = slice(layer * self._own, (layer + 1) * self._own)
        projected = cpu_linear.linear(super().embed(ids), self._to_own[cut], batch=batch)
        projected = projected * model.per_layer_model_projection_scale
        table = model.embed_tokens_per_layer
        of_token = table.weight[ids, cut] * table.embed_scale.to(self.dtype)
        both: Tensor = norm(model.per_layer_projection_norm, projected) + of_token
        return both * float(model.per_layer_input_scale)

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return super().logits(x[:, : self.hidden], batch=batch)
