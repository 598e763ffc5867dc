"""Multi-head latent attention in the form in which one row is kept for all heads.

A row is the latent after its norm and the part of the key that is rotated; scores of a head are
those of its query, multiplied by the head's W_k, with rows, and what it attends is multiplied by
its W_v afterwards. Beside it the experts of these families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.references.prefill import Reference, frequencies


class LatentReference(Reference):
    """DeepSeek V2 and V3, and GLM-4.7-Flash."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        turned, self.latent = int(config["qk_rope_head_dim"]), int(config["kv_lora_rank"])
        wide = {"num_key_value_heads": 1, "head_dim": turned + self.latent}
        super().__init__(weights, {**config, **wide, "layer_types": None})
        self.turned, self.still = turned, int(config["qk_nope_head_dim"])
        rope = config["rope_parameters"]
        self.frequencies, self.rope_factor = frequencies(rope, turned)
        self.ropes = {"full_attention": (self.frequencies, self.rope_factor)}
        self.scale = 1 / math.sqrt(self.still + turned)
        if rope["rope_type"] != "default" and rope.get("mscale_all_dim"):
            self.scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2

    def halves(self, x: Tensor) -> Tensor:
        """Rows `[..., rotated + latent]`, of which neighbours of the rotated part turn together
        unless the config says that halves do."""
        apart = self.config.get("rope_interleave", True) is False
        first, rest = list(range(self.turned)), list(range(self.turned, self.d))
        half, middle = self.turned // 2, len(rest) // 2
        left, right = (first[:half], first[half:]) if apart else (first[::2], first[1::2])
        return x[..., [*left, *rest[:middle], *right, *rest[middle:]]]

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = 1e-6 if name.endswith("a_layernorm") else self.eps
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * self.w[name + ".weight"]

    def of_head(self, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """W_k `[still, latent]` and W_v `[value, latent]` of a head."""
        both = self.w[f"model.layers.{layer}.self_attn.kv_b_proj.weight"]
        each = len(both) // self.heads
        return both[head * each :][: self.still], both[head * each + self.still :][
            : each - self.still
        ]

    def project(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        normed = self.norm(x, prefix + "input_layernorm")
        if attention + "q_proj.weight" in self.w:
            q = self.linear(normed, attention + "q_proj")
        else:
            inner = self.norm(
                self.linear(normed, attention + "q_a_proj"), f"{attention}q_a_layernorm"
            )
            q = self.linear(inner, attention + "q_b_proj")
        q = q.reshape(len(x), self.heads, -1)
        own = self.linear(normed, attention + "kv_a_proj_with_mqa")
        latent = self.norm(own[:, : self.latent], attention + "kv_a_layernorm")
        row = self.halves(torch.cat([own[:, self.latent :], latent], -1))[:, None]
        queries = [
            torch.cat(
                [q[:, h, self.still :], q[:, h, : self.still] @ self.of_head(layer, h)[0]], -1
            )
            for h in range(self.heads)
        ]
        return self.halves(torch.stack(queries, 1)), row, row

    def block_tail(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        order = self.halves(torch.arange(self.d))
        plain = torch.empty(len(x), self.heads, self.d)
        plain[..., order] = attended.reshape(len(x), self.heads, self.d)
        values = [
            plain[:, h, self.turned :] @ self.of_head(layer, h)[1].T for h in range(self.heads)
        ]
        return super().block_tail(layer, x, torch.cat(values, -1))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}.mlp."
        if prefix + "experts.down_proj" not in self.w:
            return self.gated_mlp(prefix, x)
        out = self.gated_mlp(prefix + "shared_experts.", x)
        return out + torch.stack([self.experts(prefix, row) for row in x])

    def experts(self, prefix: str, row: Tensor) -> Tensor:
        """One row's experts, from the best groups: V2's by the best expert of each, V3's by the
        two best and with a bias that the weights do not have."""
        c, logits = self.config, self.w[prefix + "gate.weight"] @ row
        if row.isnan().any():  # a row that is not computed
            return row
        if self.family == "deepseek_v2":
            weights, best = logits.softmax(-1), 1
            ranks = weights.tolist()
        else:
            weights, best = 1 / (1 + torch.exp(-logits)), 2
            ranks = (weights + self.w[prefix + "gate.e_score_correction_bias"]).tolist()
        size = len(ranks) // c["n_group"]
        groups = [range(g * size, (g + 1) * size) for g in range(c["n_group"])]
        of_group = [sum(sorted((ranks[e] for e in g), reverse=True)[:best]) for g in groups]
        first = sorted(range(len(groups)), key=lambda g: -of_group[g])[: c["topk_group"]]
        if c.get("topk_method") == "greedy":
            first = list(range(len(groups)))
        chosen = sorted((e for g in first for e in groups[g]), key=lambda e: -ranks[e])
        chosen = chosen[: c["num_experts_per_tok"]]
        whole = 1.0
        if self.family != "deepseek_v2" and c["norm_topk_prob"]:
            whole = float(sum(weights[e] for e in chosen))
        out = torch.zeros_like(row)
        for expert in chosen:
            gate, up = (self.w[prefix + "experts.gate_up_proj"][expert] @ row).chunk(2)
            part = self.w[prefix + "experts.down_proj"][expert] @ (
                gate / (1 + torch.exp(-gate)) * up
            )
            out += c["routed_scaling_factor"] * weights[expert] / whole * part
        return out
