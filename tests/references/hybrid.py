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

    def logits(self, ids: Sequence[int], written: list[Written]) -> Tensor:
        """Run tokens behind what was written, to which they add; logits of the last."""
        embed = self.model.get_input_embeddings()
        for token in ids:
            x = embed(torch.tensor([token]))[0]
            for block, before in zip(self.blocks, written, strict=True):
                inner = block.input_layernorm(x)
                if hasattr(block, "linear_attn"):
                    x = x + self.mixer(block.linear_attn, inner, before)
                else:
                    x = x + self.attention(block.self_attn, inner, before)
                x = x + block.mlp(block.post_attention_layernorm(x)[None, None])[0, 0]
        return self.model.lm_head(self.model.model.norm(x))

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """Heads `[heads, d]` of which the first quarter turns, pairs half of it apart."""
        rope = self.config.rope_parameters
        turned = int(x.shape[-1] * rope["partial_rotary_factor"])
        half, out = turned // 2, x.clone()
        for i in range(half):
            angle = position * rope["rope_theta"] ** (-2 * i / turned)
            a, b = x[:, i], x[:, i + half]
            out[:, i] = a * math.cos(angle) - b * math.sin(angle)
            out[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(self, net: Any, x: Tensor, written: Written) -> Tensor:
        d, heads = self.config.head_dim, self.config.num_attention_heads
        both = net.q_proj(x).view(heads, 2 * d)
        q, gate = net.q_norm(both[:, :d]), both[:, d:].reshape(-1)
        k = net.k_norm(net.k_proj(x).view(-1, d))
        written.rows.append((k, net.v_proj(x).view(-1, d)))
        q = self.rotated(q, len(written.rows) - 1)
        group = heads // self.config.num_key_value_heads
        out = []
        for head in range(heads):
            keys = [self.rotated(k, at)[head // group] for at, (k, _) in enumerate(written.rows)]
            weights = (torch.stack(keys) @ q[head] / math.sqrt(d)).softmax(0)
            values = torch.stack([v[head // group] for _, v in written.rows])
            out.append(weights @ values)
        return net.o_proj(torch.cat(out) * torch.sigmoid(gate))

    def mixer(self, net: Any, x: Tensor, written: Written) -> Tensor:
        c = self.config
        heads, groups, wide = (
            c.linear_num_value_heads,
            c.linear_num_key_heads,
            c.linear_key_head_dim,
        )
        mixed, z, b, a = self.split(net, x)
        taps = net.conv1d.weight[:, 0]
        seen = [row[0] for row in written.rows[-(taps.shape[1] - 1) :]] + [mixed]
        out = sum(row * taps[:, taps.shape[1] - len(seen) + i] for i, row in enumerate(seen))
        out = out / (1 + torch.exp(-out))
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
