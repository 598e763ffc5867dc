"""Families some of whose MLPs are experts, of which a router chooses a few for every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.model.decoder import DecoderModel, activation_of
from kvstitch.service.worker.model.model_facts import AttentionRule
from kvstitch.service.worker.model.projection import Projection
from kvstitch.service.worker.steps import Steps

PAUSE_ROWS = 64
"""Rows of an expert after which other work may run."""


class ExpertsModel(DecoderModel):
    """What these families share: a layer's `mlp` with `experts` has a router, `gate`; another is
    a gated MLP like Llama's."""

    has_plain_layers = False

    def expert_width(self) -> int:
        """Intermediate size of one expert."""
        return int(self.config.moe_intermediate_size)

    def shared_width(self) -> int:
        """Intermediate size of what all rows take beside experts."""
        return 0

    def feed_weights(self, block: Any) -> int:
        if not hasattr(block.mlp, "experts"):
            return super().feed_weights(block)
        rows = self.config.num_experts_per_tok * self.expert_width() + self.shared_width()
        return int(3 * self.hidden * rows)

    def router_weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        """Return weights of the experts `[m, chosen]`, from their probabilities fp32."""
        if self.config.norm_topk_prob:
            chosen = chosen / chosen.sum(-1, keepdim=True)
        return chosen.to(dtype)

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        """Return numbers of the experts of every row, and their outputs' weights, each `[m, k]`."""
        router = cpu_linear.linear(x, mlp.gate.weight, batch=batch)
        top = router.softmax(-1, dtype=torch.float32).topk(self.config.num_experts_per_tok, dim=-1)
        return top.indices, self.router_weights(top.values, router.dtype)

    def expert(self, experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
        """Return what an expert makes of its rows `[m, hidden]`."""
        return expert_output(experts, number, x, batch)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection] | tuple[None, None]:
        return (None, None) if hasattr(mlp, "experts") else super().mlp_projections(mlp)

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp = self.blocks[layer].mlp
        if not hasattr(mlp, "experts"):
            return (yield from super().mlp(layer, x, batch))
        chosen, weights = self.route(mlp, x, batch)
        expert = partial(self.expert, mlp.experts, batch=batch)
        return (yield from mixed_experts(expert, x, chosen, weights))


def expert_output(experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
    """Return what an expert that is a gated MLP makes of its rows `[m, hidden]`."""
    both = cpu_linear.linear(x, experts.gate_up_proj[number], batch=batch)
    gate, up = both.chunk(2, dim=-1)
    inner = experts.act_fn(gate).mul_(up)
    return cpu_linear.linear(inner, experts.down_proj[number], batch=batch)


def balanced_route(config: Any, gate: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
    """`ExpertsModel.route` by sigmoids and a bias that was learnt to balance the experts, within
    the best groups (DeepSeek-V3)."""
    probabilities = cpu_linear.linear(x.float(), gate.weight.float(), batch=batch).sigmoid()
    biased = probabilities + gate.e_score_correction_bias
    ranked = of_best_groups(config, biased, 2, hidden=float("-inf"))
    chosen = ranked.topk(int(config.num_experts_per_tok), dim=-1).indices
    weights = probabilities.gather(1, chosen)
    if config.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * float(config.routed_scaling_factor)


def of_best_groups(config: Any, scores: Tensor, best: int, *, hidden: float) -> Tensor:
    """Return scores `[m, experts]` with `hidden` in place of those whose group is not among the
    best, by the sum of the `best` largest in each."""
    groups = scores.view(len(scores), int(config.n_group), -1)
    ranks = groups.topk(best, dim=-1).values.sum(-1)
    chosen = torch.zeros_like(ranks, dtype=torch.bool)
    chosen.scatter_(1, ranks.topk(int(config.topk_group), dim=-1).indices, True)
    seen = chosen.unsqueeze(-1).expand_as(groups).flatten(1)
    return scores.masked_fill(~seen, hidden)


def mixed_experts(
    expert: Callable[[int, Tensor], Tensor], x: Tensor, chosen: Tensor, weights: Tensor
) -> Steps[Tensor]:
    """Return the sum of the chosen experts' `[m, k]` outputs by their weights `[m, k]`. Rows of
    one expert are computed together; every row adds its experts in the same order, whatever the
    others are."""
    out, since = torch.zeros_like(x), 0
    for number in sorted(set(chosen.flatten().tolist())):
        rows, place = (chosen == number).nonzero(as_tuple=True)
        part = expert(number, x[rows])
        out.index_add_(0, rows, (part * weights[rows, place, None]).to(out.dtype))
        if (since := since + len(rows)) >= PAUSE_ROWS:
            since = 0
            yield None
    return out


class Mixtral(ExpertsModel):
    """Mixtral: every MLP is several experts, whose probabilities are normalised in fp32."""

    def expert_width(self) -> int:
        return int(self.config.intermediate_size)

    def router_weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        return chosen / chosen.sum(-1, keepdim=True)


class SharedExperts(ExpertsModel):
    """Experts, and one more that all rows share, which has the name `shared`."""

    shared = "shared_experts"

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection] | tuple[None, None]:
        # Past ExpertsModel, which has no projections for a layer with experts.
        return DecoderModel.mlp_projections(self, getattr(mlp, self.shared, mlp))

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp, projections = self.blocks[layer].mlp, self.projections[layer]
        routed = yield from super().mlp(layer, x, batch)
        if not hasattr(mlp, "experts"):
            return routed
        assert projections.gate_up is not None and projections.down is not None
        gate, up = projections.gate_up(x, batch=batch).chunk(2, dim=-1)
        inner = activation_of(getattr(mlp, self.shared))(gate).mul_(up)
        return routed + self.shared_part(mlp, x, projections.down(inner, batch=batch), batch)

    def shared_part(self, mlp: Any, x: Tensor, out: Tensor, batch: bool) -> Tensor:
        """Return what a layer adds of its shared expert's output for the rows x."""
        return out


class Qwen2Moe(SharedExperts):
    """Qwen1.5 and Qwen2 with experts: biases on q, k and v, and a shared expert with a gate."""

    shared = "shared_expert"

    def shared_width(self) -> int:
        return int(self.config.shared_expert_intermediate_size)

    def shared_part(self, mlp: Any, x: Tensor, out: Tensor, batch: bool) -> Tensor:
        return cpu_linear.linear(x, mlp.shared_expert_gate.weight, batch=batch).sigmoid() * out


class Qwen3Moe(ExpertsModel):
    """Qwen3 with experts (30B-A3B, 235B-A22B): norms on query and key heads, and some dense
    layers."""


class GptOss(ExpertsModel):
    """gpt-oss: experts with biases and a clamped SwiGLU, a sliding window in every other layer, and
    a sink per head that takes part in every softmax."""

    def __init__(self, model: Any) -> None:
        for block in model.model.layers:
            for weights in (block.mlp.experts.gate_up_proj, block.mlp.experts.down_proj):
                # `[experts, in, out]`, laid out in memory as kernels read it: output by output
                weights.data = weights.data.transpose(1, 2).contiguous().transpose(1, 2)
        super().__init__(model)

    def expert_width(self) -> int:
        return int(self.config.intermediate_size)

    def attention_rules(self) -> list[AttentionRule]:
        return [
            replace(rule, sinks=block.self_attn.sinks.detach().float())
            for rule, block in zip(super().attention_rules(), self.blocks, strict=True)
        ]

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        router = cpu_linear.linear(x, mlp.router.weight, mlp.router.bias, batch=batch)
        top = router.topk(self.config.num_experts_per_tok, dim=-1)
        return top.indices, top.values.softmax(-1)

    def expert(self, experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
        both = cpu_linear.linear(
            x, experts.gate_up_proj[number].t(), experts.gate_up_proj_bias[number], batch=batch
        )
        limit = float(self.config.swiglu_limit)
        gate = both[..., ::2].clamp(max=limit)
        up = both[..., 1::2].clamp(-limit, limit)
        inner = (up + 1) * (gate * torch.sigmoid(gate * self.config.swiglu_alpha))
        return cpu_linear.linear(
            inner, experts.down_proj[number].t(), experts.down_proj_bias[number], batch=batch
        )
