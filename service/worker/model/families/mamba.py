"""Hybrids whose mixers are Mamba-2: Granite 4 and Nemotron-H."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.model import mamba2
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families.dense import Granite
from kvstitch.service.worker.model.families.experts import (
    balanced_route,
    expert_output,
    mixed_experts,
)
from kvstitch.service.worker.model.families.hybrid import Hybrid, MixerRows, by_head, numbers
from kvstitch.service.worker.model.mixer_state import FirstRows, MixerShape
from kvstitch.service.worker.model.projection import Projection, fuse, norm
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch.service.worker.steps import Steps


class MambaHybrid(Hybrid):
    """What these families share: their mixers, and attention without RoPE."""

    def mixer_shape(self, config: Any) -> MixerShape:
        net = self.mixer_of(self.blocks[-1])
        return MixerShape(
            heads=net.num_heads, key=net.ssm_state_size, value=net.head_dim,
            rows=net.conv_kernel_size - 1, channels=net.conv_dim, groups=net.n_groups, scalar=True,
        )  # fmt: skip

    def mixer_of(self, block: Any) -> Any:
        return block.mamba

    def rotary_tables(self) -> list[RotaryTable]:
        still = torch.zeros(self.head_dim // 2, device=self.device)
        return [RotaryTable(still, 1.0, self.max_context)] * self.layers

    def mixer_rows(self, net: Any, projected: Tensor) -> MixerRows:
        sizes = [net.intermediate_size, net.conv_dim, net.num_heads]
        gate, mixed, dt = torch.split(projected, sizes, -1)
        return MixerRows(mixed, (gate, dt))

    def apply_rule(
        self, net: Any, own: MixerRows, mixed: Tensor, sums: Tensor, *, step: bool
    ) -> tuple[Tensor, Tensor]:
        queries, keys, values, dt = self._given(net, own, mixed)
        decay = -net.A_log.float().exp() * dt
        rule = mamba2.step if step else mamba2.run
        read, after = rule(queries, keys, values * dt[..., None], decay, sums)
        read[..., : net.head_dim] += values * net.D.float()[:, None]
        return read, after

    def first_rows(self, net: Any, own: MixerRows, mixed: Tensor) -> FirstRows:
        _, keys, values, dt = self._given(net, own, mixed)
        return FirstRows(-net.A_log.float().exp() * dt, keys, values * dt[..., None])

    def _given(
        self, net: Any, own: MixerRows, mixed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys of groups, values, and steps in time `[m, heads]`."""
        wide = net.n_groups * net.ssm_state_size
        v, k, q = torch.split(mixed, [net.intermediate_size, wide, wide], -1)
        dt = F.softplus(own.beside[1].float() + net.dt_bias.float()).clamp(*net.time_step_limit)
        queries, keys = (by_head(part, net.n_groups) for part in (q, k))
        return queries, keys, by_head(v, net.num_heads), dt

    def mixer_output(self, net: Any, own: MixerRows, read: Tensor) -> Tensor:
        normed: Tensor = net.norm(read.flatten(1), own.beside[0])
        return normed


class GraniteMoeHybrid(MambaHybrid, Granite):
    """Granite 4: Mamba-2 in nine of ten layers, mostly no RoPE, Granite's multipliers, and in some
    models experts beside an MLP that all rows share."""

    def feed_weights(self, block: Any) -> int:
        config, rows = self.config, int(self.config.shared_intermediate_size)
        if block.mlp.routed is not None:
            rows += int(config.num_experts_per_tok * config.intermediate_size)
        return 3 * self.hidden * rows

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        return super().order_blocks(
            [
                SimpleNamespace(
                    input_layernorm=b.input_layernorm, self_attn=b.self_attn, mamba=b.mamba,
                    post_attention_layernorm=b.post_attention_layernorm,
                    mlp=SimpleNamespace(
                        gate_up=b.shared_mlp.input_linear, down=b.shared_mlp.output_linear,
                        act_fn=b.shared_mlp.activation, routed=b.block_sparse_moe,
                    ),
                )
                for b in blocks
            ]
        )  # fmt: skip

    def rotary_tables(self) -> list[RotaryTable]:
        if self.config.position_embedding_type == "rope":
            return DecoderModel.rotary_tables(self)
        return super().rotary_tables()

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection]:
        return fuse(mlp.gate_up), fuse(mlp.down)

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        shared = yield from super().mlp(layer, x, batch)
        if (routed := self.blocks[layer].mlp.routed) is None:
            return shared
        logits = cpu_linear.linear(x, routed.router.weight, batch=batch).float()
        top = logits.topk(int(self.config.num_experts_per_tok), dim=-1)
        weights = top.values.softmax(-1).to(x.dtype)
        expert = partial(expert_output, routed.experts, batch=batch)
        return shared + (yield from mixed_experts(expert, x, top.indices, weights))


@dataclass(frozen=True)
class Feed:
    """An MLP of Nemotron-H, or experts and an MLP that all rows share."""

    norm: Any
    net: Any
    up: Projection
    down: Projection
    to_latent: Projection | None = None
    from_latent: Projection | None = None


class NemotronH(MambaHybrid):
    """Nemotron-H and Nemotron 3: Mamba-2, attention without RoPE, and MLPs or experts with a
    squared ReLU, each a layer of its own."""

    last_norm = "norm_f"

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Return attention layers and then the mixers, each with what follows it."""
        units: list[Any] = []
        for block in blocks:
            kind, net = block.block_type, block.mixer
            if kind in ("full_attention", "linear_attention"):
                attends = kind == "full_attention"
                unit = SimpleNamespace(
                    input_layernorm=block.norm, self_attn=net if attends else None,
                    mamba=None if attends else net, mlp=None, feeds=[],
                )  # fmt: skip
                units.append(unit)
            elif not units:
                raise ModelRefused(
                    f"this {self.family} begins with {kind}, which is not served: give a model "
                    "that begins with a mixer or attention",
                    field="model",
                )
            else:
                units[-1].feeds.append(self._feed(block))
        return super().order_blocks(units)

    def _feed(self, block: Any) -> Feed:
        net = block.mixer
        shared = getattr(net, "shared_experts", net)
        latent: list[Projection] = []
        if isinstance(getattr(net, "fc1_latent_proj", None), nn.Linear):
            latent = [fuse(net.fc1_latent_proj), fuse(net.fc2_latent_proj)]
        return Feed(block.norm, net, fuse(shared.up_proj), fuse(shared.down_proj), *latent)

    def mlp_projections(self, mlp: Any) -> tuple[None, None]:
        return None, None  # feeds have their own

    def feed_weights(self, block: Any) -> int:
        total = 0
        for feed in block.feeds:
            total += sum(map(numbers, (feed.up, feed.down, feed.to_latent, feed.from_latent)))
            if hasattr(feed.net, "experts"):
                one = feed.net.experts.up_proj[0].numel() + feed.net.experts.down_proj[0].numel()
                total += int(self.config.num_experts_per_tok) * int(one)
        return total

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        x = x + self.projections[layer].output(attended, batch=batch)
        for feed in self.blocks[layer].feeds:
            x = x + (yield from self._fed(feed, norm(feed.norm, x), batch))
        return x

    def _fed(self, feed: Feed, x: Tensor, batch: bool) -> Steps[Tensor]:
        net = feed.net
        activation = getattr(net, "shared_experts", net).act_fn
        out = feed.down(activation(feed.up(x, batch=batch)), batch=batch)
        if not hasattr(net, "experts"):
            return out
        chosen, weights = balanced_route(self.config, net.gate, x, batch)
        inner = x if feed.to_latent is None else feed.to_latent(x, batch=batch)
        expert = partial(self._expert, net.experts, batch=batch)
        routed = yield from mixed_experts(expert, inner, chosen, weights)
        if feed.from_latent is not None:
            routed = feed.from_latent(routed, batch=batch)
        return out + routed

    def _expert(self, experts: Any, number: int, x: Tensor, batch: bool) -> Tensor:
        inner = experts.act_fn(cpu_linear.linear(x, experts.up_proj[number], batch=batch))
        return cpu_linear.linear(inner, experts.down_proj[number], batch=batch)
