"""Hybrids: families most of whose layers are mixers that keep a state instead of a key and value
per token. Gated DeltaNet is the mixer here.

What the rest of the worker calls layers are the attention layers of such a model. Mixers stand
before them:

    layers of the model     M M M A   M M M A  …
    here                    mixers[0], layer 0, mixers[1], layer 1, …

So KV is stored, loaded and placed for attention layers alone, and each brings what its mixers
need: of a document their `StoredState`s, of a sequence their `State`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model import gated_delta
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families.experts import Qwen2Moe
from kvstitch.service.worker.model.gated_delta import Map
from kvstitch.service.worker.model.mixer_state import MixerShape, State, StoredState
from kvstitch.service.worker.model.projection import (
    DenseProjection,
    LayerProjections,
    Projection,
    fuse,
    norm,
)
from kvstitch.service.worker.steps import Steps, run

MIXER_ROWS = 512
"""Rows that a mixer computes at once; then other work may run."""


@dataclass(frozen=True)
class DeltaRows:
    """What the rule reads of some rows, before the convolution: `mixed` `[m, channels]` of
    queries, keys and values, the gate of its output `z` `[m, value heads, value]`, and `b` and `a`
    `[m, value heads]`."""

    mixed: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class DeltaHybrid(DecoderModel):
    """What these families share: layers with a `linear_attn` are gated DeltaNets; the others have
    a gate on what attention returns."""

    has_plain_layers = False
    mixer: MixerShape

    measured = False
    takes_adapters = False

    def __init__(self, model: Any) -> None:
        config = model.config
        self.key_heads = int(config.linear_num_key_heads)
        self.value_heads = int(config.linear_num_value_heads)
        self.key, self.value = int(config.linear_key_head_dim), int(config.linear_value_head_dim)
        self.gates: dict[Any, Projection] = {}
        super().__init__(model)
        self.mixer = MixerShape(
            heads=self.value_heads, key=self.key, value=self.value,
            rows=int(config.linear_conv_kernel_dim) - 1,
            channels=2 * self.key_heads * self.key + self.value_heads * self.value,
        )  # fmt: skip
        # What a row costs in the layers before one with attention, for the planner.
        each = self.intermediate + self.mixer.channels // 2
        self.intermediate += sum(map(len, self.mixers)) * each // self.layers

    # -- layers -----------------------------------------------------------------------------------

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Return attention layers, `layers` of them, and then the mixers."""
        attention = [block for block in blocks if hasattr(block, "self_attn")]
        found: list[list[int]] = [[]]
        ordered = list(attention)
        for block in blocks:
            if hasattr(block, "self_attn"):
                found.append([])
                continue
            found[-1].append(len(ordered))
            ordered.append(block)
        if not attention or found.pop():
            raise ModelRefused(
                f"the last layer of this {self.family} is no attention layer, which is not "
                "served: give a model that ends with one",
                field="model",
            )
        self.layers, self.mixers = len(attention), found
        return ordered

    def layer_projections(self, block: Any) -> LayerProjections:
        gate_up, down = self.mlp_projections(block.mlp) or (None, None)
        if hasattr(block, "linear_attn"):
            net = block.linear_attn
            return LayerProjections(self.mixer_input(net), fuse(net.out_proj), gate_up, down)
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
        return LayerProjections(qkv, fuse(attention.o_proj), gate_up, down)

    def mixer_input(self, net: Any) -> Projection:
        """Return the projection to what `delta_rows` splits."""
        return fuse(net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a)

    def delta_rows(self, projected: Tensor) -> DeltaRows:
        values, heads = self.value_heads * self.value, self.value_heads
        mixed = 2 * self.key_heads * self.key + values
        parts = torch.split(projected, [mixed, values, heads, heads], -1)
        return DeltaRows(parts[0], _by_head(parts[1], heads), parts[2], parts[3])

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return norm(attention.q_norm, q), norm(attention.k_norm, k)

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        block = self.blocks[layer]
        gate = self.gates[block](self.attention_input(block, x), batch=batch)
        gated = attended * gate.sigmoid()
        return (yield from super().finish_steps(layer, x, gated, batch=batch))

    # -- mixers -----------------------------------------------------------------------------------

    def mix(
        self, index: int, x: Tensor, state: State | None, *, stored: list[StoredState] | None = None
    ) -> Steps[tuple[Tensor, State]]:
        """Run rows x `[m, hidden]` through a block of `mixers` behind a state, None for the first;
        return both after them. What they make of any state is added to `stored`."""
        shape, out = self.mixer, torch.empty_like(x)
        before = shape.first(x) if state is None else state
        rows, sums = before.rows, before.sums
        if stored is not None:  # read 0, and beside it what any state would be
            eye = torch.eye(self.key, device=x.device).expand(self.value_heads, -1, -1)
            sums = torch.cat([torch.zeros_like(sums), eye], -1)
        for start in range(0, len(x), MIXER_ROWS):
            if start:
                yield None
            cut = slice(start, start + MIXER_ROWS)
            own = self._delta_rows(index, x[cut], batch=False)
            seen = torch.cat([rows, own.mixed])
            rows = seen[len(seen) - shape.rows :]
            q, k, v = self._after_convolution(index, [seen[j:][: len(own.mixed)] for j in
                                                      range(shape.rows + 1)])  # fmt: skip
            read, sums = gated_delta.run(q, k, v, *self._rates(index, own), sums)
            if stored is not None:
                by_state = torch.einsum("mhk,hkv->mhv", read[..., self.value :], before.sums)
                read = read[..., : self.value] + by_state
            out[cut] = yield from self._finish_mixer(index, x[cut], read, own.z, batch=False)
        if stored is not None:
            mapped = Map(sums[..., self.value :], sums[..., : self.value])
            stored.append(StoredState(rows, mapped, min(len(x), shape.rows)))
            sums = mapped.of(before.sums)
        return out, State(rows.clone(), sums)

    def mix_step(
        self, index: int, x: Tensor, states: Sequence[State]
    ) -> tuple[Tensor, list[State]]:
        own = self._delta_rows(index, x, batch=True)
        seen = torch.cat([torch.stack([s.rows for s in states]), own.mixed[:, None]], 1)
        q, k, v = self._after_convolution(index, seen.unbind(1))
        sums = torch.stack([s.sums for s in states])
        read, sums = gated_delta.step(q, k, v, *self._rates(index, own), sums)
        steps = self._finish_mixer(index, x, read, own.z, batch=True)
        return run(steps), [State(r, s) for r, s in zip(seen[:, 1:], sums, strict=True)]

    def _delta_rows(self, index: int, x: Tensor, *, batch: bool) -> DeltaRows:
        inner = self.attention_input(self.blocks[index], x)
        return self.delta_rows(self.projections[index].qkv(inner, batch=batch))

    def _after_convolution(
        self, index: int, seen: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v `[m, value heads, …]` fp32 of rows, from what stood before each, the
        nearest last, and their own `[m, channels]`."""
        net = self.blocks[index].linear_attn
        weight = net.conv1d.weight[:, 0].float()
        out = seen[0].float() * weight[:, 0]
        for place, rows in enumerate(seen[1:], start=1):
            out.addcmul_(rows.float(), weight[:, place])
        mixed = F.silu(out).to(seen[0].dtype).float()
        wide = self.key_heads * self.key
        q, k, v = torch.split(mixed, [wide, wide, self.value_heads * self.value], -1)
        share = self.value_heads // self.key_heads
        q, k = (
            gated_delta.normalised(_by_head(part, self.key_heads)).repeat_interleave(share, 1)
            for part in (q, k)
        )
        return q * self.key**-0.5, k, _by_head(v, self.value_heads)

    def _rates(self, index: int, own: DeltaRows) -> tuple[Tensor, Tensor]:
        """Return log of the decay and beta `[m, value heads]` fp32."""
        net = self.blocks[index].linear_attn
        decay = -net.A_log.float().exp() * F.softplus(own.a.float() + net.dt_bias)
        return decay, own.b.sigmoid().float()

    def _finish_mixer(
        self, index: int, x: Tensor, read: Tensor, z: Tensor, *, batch: bool
    ) -> Steps[Tensor]:
        net = self.blocks[index].linear_attn
        normed = net.norm(read.to(x.dtype).reshape(-1, self.value), z.reshape(-1, self.value))
        # Behind its own output a mixer goes on as every layer does.
        inner = normed.view(len(x), -1)
        return (yield from super().finish_steps(index, x, inner, batch=batch))


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

    def delta_rows(self, projected: Tensor) -> DeltaRows:
        heads, share = self.key_heads, self.value_heads // self.key_heads
        values = share * self.value
        wide = heads * (2 * self.key + 2 * values)
        # Of every key head its query, key, values and gates, then its rates.
        qkvz = _by_head(projected[:, :wide], heads)
        q, k, v, z = torch.split(qkvz, [self.key, self.key, values, values], -1)
        b, a = torch.split(_by_head(projected[:, wide:], heads), share, -1)
        mixed = torch.cat([part.flatten(1) for part in (q, k, v)], -1)
        gates = _by_head(z.flatten(1), self.value_heads)
        return DeltaRows(mixed, gates, b.flatten(1), a.flatten(1))


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return rows `[m, heads * width]` as `[m, heads, width]`."""
    return x.reshape(len(x), heads, -1)
