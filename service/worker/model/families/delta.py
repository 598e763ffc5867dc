"""Hybrids whose mixers are gated DeltaNets: Qwen3.5 and Qwen3-Next."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.model import gated_delta
from kvstitch.service.worker.model.families.experts import Qwen2Moe
from kvstitch.service.worker.model.families.hybrid import Hybrid, MixerRows, by_head, numbers
from kvstitch.service.worker.model.mixer_state import FirstRows, MixerShape
from kvstitch.service.worker.model.projection import (
    DenseProjection,
    LayerProjections,
    Projection,
    fuse,
)
from kvstitch.service.worker.steps import Steps


class DeltaHybrid(Hybrid):
    """What these families share: layers with a `linear_attn` are gated DeltaNets; the others have
    a gate on what attention returns."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.key_heads = int(config.linear_num_key_heads)
        self.value_heads = int(config.linear_num_value_heads)
        self.key, self.value = int(config.linear_key_head_dim), int(config.linear_value_head_dim)
        self.gates: dict[Any, Projection] = {}
        super().__init__(model)

    def mixer_shape(self, config: Any) -> MixerShape:
        return MixerShape(
            heads=self.value_heads, key=self.key, value=self.value,
            rows=int(config.linear_conv_kernel_dim) - 1,
            channels=2 * self.key_heads * self.key + self.value_heads * self.value,
            groups=self.key_heads,
        )  # fmt: skip

    def mixer_of(self, block: Any) -> Any:
        return getattr(block, "linear_attn", None)

    # -- attention --------------------------------------------------------------------------------

    def layer_projections(self, block: Any) -> LayerProjections:
        if self.mixer_of(block) is not None:
            return super().layer_projections(block)
        attention = block.self_attn
        fuse(attention.q_proj)  # so that it holds no file
        rows = attention.q_proj.weight.detach().view(self.heads, 2, self.head_dim, self.hidden)
        biases = attention.q_proj.bias
        q, gate = (rows[:, part].reshape(-1, self.hidden) for part in (0, 1))
        weight = torch.cat([q, attention.k_proj.weight, attention.v_proj.weight])
        if biases is None:
            qkv, self.gates[block] = DenseProjection(weight), DenseProjection(gate)
        else:
            q_bias, gate_bias = biases.detach().view(self.heads, 2, -1).unbind(1)
            every = [q_bias.flatten(), attention.k_proj.bias, attention.v_proj.bias]
            qkv = DenseProjection(weight, torch.cat(every))
            self.gates[block] = DenseProjection(gate, gate_bias.reshape(-1))
        return LayerProjections(qkv, fuse(attention.o_proj), *self.mlp_projections(block.mlp))

    def feed_weights(self, block: Any) -> int:
        return super().feed_weights(block) + numbers(self.gates.get(block))

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        if layer < self.layers:
            block = self.blocks[layer]
            gate = self.gates[block](self.attention_input(block, x), batch=batch)
            attended = attended * gate.sigmoid()
        return (yield from super().finish_steps(layer, x, attended, batch=batch))

    # -- mixers -----------------------------------------------------------------------------------

    def mixer_input(self, net: Any) -> Projection:
        return fuse(net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a)

    def mixer_rows(self, net: Any, projected: Tensor) -> MixerRows:
        """Inputs of the convolution are queries, keys and values; beside them are the gate of the
        output `[m, value heads, value]`, and what beta and the decay are of, `[m, value heads]`."""
        values, heads = self.value_heads * self.value, self.value_heads
        mixed = 2 * self.key_heads * self.key + values
        parts = torch.split(projected, [mixed, values, heads, heads], -1)
        return MixerRows(parts[0], (by_head(parts[1], heads), parts[2], parts[3]))

    def apply_rule(
        self, net: Any, own: MixerRows, mixed: Tensor, sums: Tensor, *, step: bool
    ) -> tuple[Tensor, Tensor]:
        share = self.value_heads // self.key_heads
        q, k, v, decay, beta = self._given(net, own, mixed)
        q, k = (part.repeat_interleave(share, 1) for part in (q * self.key**-0.5, k))
        rule = gated_delta.step if step else gated_delta.run
        return rule(q, k, v, decay, beta, sums)

    def first_rows(self, net: Any, own: MixerRows, mixed: Tensor) -> FirstRows:
        _, k, v, decay, beta = self._given(net, own, mixed)
        return FirstRows(decay, k, v, beta)

    def _given(
        self, net: Any, own: MixerRows, mixed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys of key heads, values, log decays and betas."""
        _, b, a = own.beside
        wide = self.key_heads * self.key
        q, k, v = torch.split(mixed, [wide, wide, self.value_heads * self.value], -1)
        q, k = (gated_delta.normalised(by_head(part, self.key_heads)) for part in (q, k))
        decay = -net.A_log.float().exp() * F.softplus(a.float() + net.dt_bias)
        return q, k, by_head(v, self.value_heads), decay, b.sigmoid().float()

    def mixer_output(self, net: Any, own: MixerRows, read: Tensor) -> Tensor:
        gates = own.beside[0]
        rows = read.to(gates.dtype).reshape(-1, self.value)
        normed: Tensor = net.norm(rows, gates.reshape(-1, self.value))
        return normed.view(len(read), -1)


class Qwen35(DeltaHybrid):
    """Qwen3.5, text: gated DeltaNets in three of four layers."""


class Qwen35Moe(DeltaHybrid, Qwen2Moe):
    """Qwen3.5 with experts, text."""

    def router_weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        return (chosen / chosen.sum(-1, keepdim=True)).to(dtype)


class Qwen3Next(DeltaHybrid, Qwen2Moe):
    """Qwen3-Next: as Qwen3.5 with experts."""

    def mixer_input(self, net: Any) -> Projection:
        return fuse(net.in_proj_qkvz, net.in_proj_ba)

    def mixer_rows(self, net: Any, projected: Tensor) -> MixerRows:
        heads, share = self.key_heads, self.value_heads // self.key_heads
        values = share * self.value
        wide = heads * (2 * self.key + 2 * values)
        # Of every key head its query, key, values and gates, then its rates.
        qkvz = by_head(projected[:, :wide], heads)
        q, k, v, z = torch.split(qkvz, [self.key, self.key, values, values], -1)
        b, a = torch.split(by_head(projected[:, wide:], heads), share, -1)
        mixed = torch.cat([part.flatten(1) for part in (q, k, v)], -1)
        gates = by_head(z.flatten(1), self.value_heads)
        return MixerRows(mixed, (gates, b.flatten(1), a.flatten(1)))
