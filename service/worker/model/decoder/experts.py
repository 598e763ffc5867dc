"""Decoders some of whose MLPs are experts, of which a router chooses a few for every row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import cpu_linear
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.projection import Projection
from service.worker.steps import Steps

PAUSE_ROWS = 64
"""Rows of an expert after which other work may run."""


class ExpertsModel(DecoderModel):
    """A layer's `mlp` with `experts` has a router, `gate`; another is a gated MLP like Llama's."""

    has_plain_layers = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # What a row costs, for the planner: layers with experts decide.
        self.intermediate = self.config.num_experts_per_tok * self.expert_width()

    def expert_width(self) -> int:
        """Intermediate size of one expert."""
        return int(self.config.moe_intermediate_size)

    def router_weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        """Weights of the experts `[m, chosen]`, from their probabilities fp32."""
        if self.config.norm_topk_prob:
            chosen = chosen / chosen.sum(-1, keepdim=True)
        return chosen.to(dtype)

    def route(self, mlp: Any, x: Tensor, batch: bool) -> tuple[Tensor, Tensor]:
        """Numbers of the experts of every row, and the weights of their outputs, each `[m, k]`."""
        router = cpu_linear.linear(x, mlp.gate.weight, batch=batch)
        top = router.softmax(-1, dtype=torch.float32).topk(self.config.num_experts_per_tok, dim=-1)
        return top.indices, self.router_weights(top.values, router.dtype)

    def expert(self, experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
        """What an expert makes of its rows `[m, hidden]`."""
        both = cpu_linear.linear(x, experts.gate_up_proj[number], batch=batch)
        gate, up = both.chunk(2, dim=-1)
        inner = experts.act_fn(gate).mul_(up)
        return cpu_linear.linear(inner, experts.down_proj[number], batch=batch)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection] | None:
        return None if hasattr(mlp, "experts") else super().mlp_projections(mlp)

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp = self.blocks[layer].mlp
        if not hasattr(mlp, "experts"):
            return (yield from super().mlp(layer, x, batch))
        chosen, weights = self.route(mlp, x, batch)
        expert = partial(self.expert, mlp.experts, batch=batch)
        return (yield from _mixed(expert, x, chosen, weights))


def _mixed(
    expert: Callable[[int, Tensor], Tensor], x: Tensor, chosen: Tensor, weights: Tensor
) -> Steps[Tensor]:
    """The weighted sum of the chosen experts' outputs. Rows of one expert are computed together;
    every row adds its experts in the same order, whatever the other rows are.

    Args:
        expert: number and rows of an expert → its outputs.
        x: `[m, hidden]`.
        chosen: numbers of the experts of every row `[m, k]`.
        weights: of their outputs `[m, k]`.
    """
    out, since = torch.zeros_like(x), 0
    for number in sorted(set(chosen.flatten().tolist())):
        rows, place = (chosen == number).nonzero(as_tuple=True)
        part = expert(number, x[rows])
        out.index_add_(0, rows, (part * weights[rows, place, None]).to(out.dtype))
        if (since := since + len(rows)) >= PAUSE_ROWS:
            since = 0
            yield None
    return out
