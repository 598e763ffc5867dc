"""Hybrids token by token: every mixer keeps what it wrote of every token, and a state is what all
tokens before it have written, one after the other. Stitching puts the writings of documents, each
computed by itself, one behind the other; nothing is composed.

Only weights and configuration are taken from a transformers model; projections run in its modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Written:
    """What a layer wrote of some tokens, a row of each: keys before RoPE and values of attention;
    inputs of the convolution, keys, values, log decay and beta of a mixer."""

    rows: list[tuple[Tensor, ...]] = field(default_factory=list)


class HybridReference:
    """Qwen3.5, with experts or without, and Qwen3-Next."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.blocks = list(model.model.layers)

    def precompute(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> list[Written]:
        """What every layer writes of a segment behind a prefix, whose rows are dropped."""
        written = [Written() for _ in self.blocks]
        self.logits([*prefix, *ids], written)
        return [Written(each.rows[len(prefix) :]) for each in written]

    def pie(self, segments: Sequence[list[Written]], question: Sequence[int]) -> Tensor:
        """Logits of the last token of a question behind stitched segments."""
        behind = [
            Written([row for segment in segments for row in segment[layer].rows])
            for layer in range(len(self.blocks))
        ]
        return self.logits(question, behind)

    def legolink(
        self,
        system: Sequence[int],
        documents: Sequence[tuple[Sequence[int], list[Written]]],
        question: Sequence[int],
        first: int,
    ) -> Tensor:
        """`pie` where the first tokens of every document write again, behind all that stands before
        them."""
        behind = self.precompute(system)
        for ids, segment in documents:
            self.logits(ids[:first], behind)
            for before, written in zip(behind, segment, strict=True):
                before.rows.extend(written.rows[first:])
        return self.logits(question, behind)

    def logits(self, ids: Sequence[int], written: list[Written]) -> Tensor:
        """Run tokens behind what was written, to which they add; logits of the last."""
        embed = self.model.get_input_embeddings()
        for token in ids:
            x = embed(torch.tensor([token]))[0] * self.multiplier("embedding_multiplier")
            for block, before in zip(self.blocks, written, strict=True):
                x = self.block(block, x, before)
        last = self.model.lm_head(getattr(self.model.model, self.last_norm)(x))
        return last / self.multiplier("logits_scaling")

    last_norm = "norm"

    def multiplier(self, name: str) -> float:
        return float(getattr(self.config, name, 1.0))

    def block(self, block: Any, x: Tensor, written: Written) -> Tensor:
        inner = block.input_layernorm(x)
        if hasattr(block, "linear_attn"):
            x = x + self.mixer(block.linear_attn, inner, written)
        else:
            x = x + self.attention(block.self_attn, inner, written)
        return x + block.mlp(block.post_attention_layernorm(x)[None, None])[0, 0]

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """Heads `[heads, d]` of which the first part turns, pairs half of it apart."""
        rope = self.config.rope_parameters
        turned = int(x.shape[-1] * rope.get("partial_rotary_factor", 1))
        half = turned // 2
        pairs = torch.arange(half, dtype=torch.float64)
        angles = position * rope["rope_theta"] ** (-2 * pairs / turned)
        cos, sin = angles.cos().float(), angles.sin().float()
        a, b, rest = x.split([half, half, x.shape[1] - turned], 1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], 1)

    def attention(self, net: Any, x: Tensor, written: Written) -> Tensor:
        d, heads = self.config.head_dim, self.config.num_attention_heads
        both = net.q_proj(x).view(heads, 2 * d)
        q, gate = net.q_norm(both[:, :d]), both[:, d:].reshape(-1)
        k = net.k_norm(net.k_proj(x).view(-1, d))
        attended = self.attended(q, k, net.v_proj(x).view(-1, d), written, d**-0.5)
        return net.o_proj(attended * torch.sigmoid(gate))

    def attended(self, q: Tensor, k: Tensor, v: Tensor, written: Written, scale: float) -> Tensor:
        """Heads `[heads, d]` before they turn; what the last of all written rows attends to."""
        written.rows.append((k, v))
        q = self.rotated(q, len(written.rows) - 1)
        group = len(q) // len(k)
        out = []
        for head in range(len(q)):
            keys = [self.rotated(k, at)[head // group] for at, (k, _) in enumerate(written.rows)]
            weights = (torch.stack(keys) @ q[head] * scale).softmax(0)
            values = torch.stack([v[head // group] for _, v in written.rows])
            out.append(weights @ values)
        return torch.cat(out)

    def convolved(self, conv: Any, mixed: Tensor, written: Written) -> Tensor:
        """An input `[channels]` behind those of the last written rows."""
        taps = conv.weight[:, 0]
        seen = [row[0] for row in written.rows[-(taps.shape[1] - 1) :]] + [mixed]
        out = sum(row * taps[:, taps.shape[1] - len(seen) + i] for i, row in enumerate(seen))
        return out if conv.bias is None else out + conv.bias

    def mixer(self, net: Any, x: Tensor, written: Written) -> Tensor:
        c = self.config
        heads, groups, wide = (
            c.linear_num_value_heads,
            c.linear_num_key_heads,
            c.linear_key_head_dim,
        )
        mixed, z, b, a = self.split(net, x)
        out = F.silu(self.convolved(net.conv1d, mixed, written))
        q, k, v = out.split([groups * wide, groups * wide, heads * c.linear_value_head_dim])
        q, k = (y.view(groups, wide) / (y.view(groups, wide).square().sum(-1, True) + 1e-6).sqrt()
                for y in (q, k))  # fmt: skip
        share = heads // groups
        q, k = q.repeat_interleave(share, 0) / math.sqrt(wide), k.repeat_interleave(share, 0)
        decay = -torch.exp(net.A_log) * F.softplus(a + net.dt_bias)
        written.rows.append((mixed, k, v.view(heads, -1), decay, torch.sigmoid(b)))
        read = []
        for head in range(heads):
            state = torch.zeros(wide, c.linear_value_head_dim)
            for _, k, v, decay, beta in written.rows:
                state = state * math.exp(float(decay[head]))
                wrong = v[head] - state.T @ k[head]
                state = state + beta[head] * torch.outer(k[head], wrong)
            read.append(state.T @ q[head])
        return net.out_proj(net.norm(torch.stack(read), z).reshape(-1))

    def split(self, net: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of the convolution, gates of the output, and what beta and the decay are of."""
        heads = self.config.linear_num_value_heads
        if hasattr(net, "in_proj_qkv"):
            z = net.in_proj_z(x).view(heads, -1)
            return net.in_proj_qkv(x), z, net.in_proj_b(x), net.in_proj_a(x)
        q, k, v, z, b, a = net.fix_query_key_value_ordering(
            net.in_proj_qkvz(x)[None, None], net.in_proj_ba(x)[None, None]
        )
        return torch.cat([y.flatten() for y in (q, k, v)]), z[0, 0], b[0, 0], a[0, 0]


class MambaReference(HybridReference):
    """Granite 4 and Nemotron-H."""

    def rotated(self, x: Tensor, position: int) -> Tensor:
        turns = getattr(self.config, "position_embedding_type", None) == "rope"
        return super().rotated(x, position) if turns else x

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.last_norm = "norm_f" if hasattr(model.model, "norm_f") else "norm"

    def block(self, block: Any, x: Tensor, written: Written) -> Tensor:
        if hasattr(block, "mixer"):  # Nemotron-H
            inner, net = block.norm(x), block.mixer
            if block.block_type == "linear_attention":
                return x + self.mixer(net, inner, written)
            if block.block_type == "full_attention":
                return x + self.attention(net, inner, written)
            return x + net(inner[None, None])[0, 0]
        share, inner = self.multiplier("residual_multiplier"), block.input_layernorm(x)
        if block.mamba is not None:
            x = x + share * self.mixer(block.mamba, inner, written)
        else:
            x = x + share * self.attention(block.self_attn, inner, written)
        inner = block.post_attention_layernorm(x)[None, None]
        out = block.shared_mlp(inner)
        if block.block_sparse_moe is not None:
            out = out + block.block_sparse_moe(inner)
        return x + share * out[0, 0]

    def attention(self, net: Any, x: Tensor, written: Written) -> Tensor:
        heads = self.config.num_attention_heads
        q = net.q_proj(x).view(heads, -1)
        d = q.shape[1]
        scale = getattr(self.config, "attention_multiplier", d**-0.5)
        k, v = net.k_proj(x).view(-1, d), net.v_proj(x).view(-1, d)
        return net.o_proj(self.attended(q, k, v, written, scale))

    def mixer(self, net: Any, x: Tensor, written: Written) -> Tensor:
        heads, d, n = net.num_heads, net.head_dim, net.ssm_state_size
        z, mixed, dt = net.in_proj(x).split([heads * d, net.conv_dim, heads])
        out = F.silu(self.convolved(net.conv1d, mixed, written))
        v, k, q = out.split([heads * d, net.n_groups * n, net.n_groups * n])
        share = heads // net.n_groups
        k, q = (y.view(-1, n).repeat_interleave(share, 0) for y in (k, q))
        dt = F.softplus(dt + net.dt_bias).clamp(min=net.time_step_limit[0])
        written.rows.append((mixed, k, v.view(heads, d), -torch.exp(net.A_log) * dt, dt))
        state = torch.zeros(heads, n, d)
        for _, k, v, decay, dt in written.rows:
            state = state * torch.exp(decay)[:, None, None]
            state = state + dt[:, None, None] * k[:, :, None] * v[:, None, :]
        read = (state * q[:, :, None]).sum(1) + net.D[:, None] * v
        return net.out_proj(net.norm(read.flatten(), z))


class ConvolutionReference(HybridReference):
    """LFM2, with experts or without."""

    last_norm = "embedding_norm"

    def block(self, block: Any, x: Tensor, written: Written) -> Tensor:
        inner = block.operator_norm(x)
        if block.is_attention_layer:
            net, heads = block.self_attn, self.config.num_attention_heads
            q = net.q_layernorm(net.q_proj(inner).view(heads, -1))
            d = q.shape[1]
            k = net.k_layernorm(net.k_proj(inner).view(-1, d))
            v = net.v_proj(inner).view(-1, d)
            x = x + net.out_proj(self.attended(q, k, v, written, d**-0.5))
        else:
            b, c, rest = block.conv.in_proj(inner).chunk(3)
            out = self.convolved(block.conv.conv, b * rest, written)
            written.rows.append((b * rest,))
            x = x + block.conv.out_proj(c * out)
        return x + block.feed_forward(block.ffn_norm(x)[None, None])[0, 0]
