"""The kernels of a GPU, where they take what is asked; torch computes everything else.

Stored KV is placed in groups of layers, copied ahead, by one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import KVPlacer
from kvstitch.service.worker.kernels.device_kernels import DeviceKernels
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import to_device
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.stored_kv import PlannedShift
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.projection import is_plain
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import (
    attention_scores_gpu,
    index_causal_attention,
    kv_placement_gpu,
    ragged_attention_gpu,
    recorded_layers,
    recorded_steps,
    rotation_gpu,
    row_kernels,
    shift_gpu,
)
from kvstitch_gpu.kv_placement_gpu import Target
from kvstitch_gpu.recorded_runs import PrefillRecordings
from kvstitch_gpu.recorded_steps import RecordedSteps
from kvstitch_gpu.shift_gpu import ShiftPlan
from kvstitch_gpu.transfers import GROUP_LAYERS, StagedLayers, Transfers


@dataclass
class GpuPlacer(KVPlacer):
    """`KVPlacer` where the kernel can write to the cache; a layer may be placed with the one before
    it. Transfers end with the context."""

    _transfers: Transfers | None = None
    _placed: int = 0  # the layer behind the last that is in place

    def __exit__(self, *_: object) -> None:
        if self._transfers is not None:
            self._transfers.finish()

    def begin(self, layer: int) -> None:
        transfers = self._transfers_at(layer)
        if transfers is not None:
            transfers.begin(layer)

    def place(self, layer: int) -> None:
        if layer < self._placed:
            return
        transfers = self._transfers_at(layer)
        if transfers is None:
            super().place(layer)
            return
        staged = transfers.group(layer)
        self._place_group(staged)
        self._placed = staged.layers.stop
        transfers.begin(self._placed)

    def _transfers_at(self, layer: int) -> Transfers | None:
        """Return the copies to the device; None if there are none, or the kernel cannot place."""
        k_all, _ = self.kv.prompt_layer(layer, self.layout.tokens)
        if not (self.segments and kv_placement_gpu.supports(k_all)):
            return None
        if self._transfers is None:
            self._transfers = self._transfers_to(k_all)
        return self._transfers

    def _transfers_to(self, k_all: Tensor) -> Transfers:
        return Transfers(
            [stored for _, stored in self.segments],
            [span for span, _ in self.segments],
            shape=(k_all.shape[0], k_all.shape[2]),
            dtype=k_all.dtype,
            layers=self.decoder.layers,
            device=k_all.device,
            most=1 if self._pool is None else GROUP_LAYERS,
        )

    def _place_group(self, staged: StagedLayers) -> None:
        """Place staged layers by one kernel for all that are rotated alike."""
        layers, ropes = staged.layers, self.decoder.ropes
        starts = [i for i in layers if i == layers.start or ropes[i] is not ropes[i - 1]]
        for first, stop in zip(starts, [*starts[1:], layers.stop], strict=True):
            target = self._pool
            if target is None:
                target = Target.of_layer(*self.kv.prompt_layer(first, self.layout.tokens))
            kv_placement_gpu.place(
                staged.buffer,
                staged.placement,
                target,
                stop - first,
                positions=self.positions,
                cos=ropes[first].cos,
                sin=ropes[first].sin,
                staged_layer=first - layers.start,
                layer=0 if self._pool is None else first,
            )

    @cached_property
    def _pool(self) -> Target | None:
        """Where all layers of the cache lie; None if they do not lie in a pool."""
        if not isinstance(self.kv, SequenceKV):
            return None
        k, _ = self.kv.prompt_layer(0, self.layout.tokens)
        starts = torch.tensor(self.kv.first_rows()) * k.shape[2]
        pool = self.kv.pool
        return Target(
            pool.all_k,
            pool.all_v,
            to_device(starts, k.device),
            k.shape[0],
            k.stride(0),
            k.stride(1),
        )


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """`kvstitch.service.worker.methods.stored_kv.squared_deviation`."""
    if view.replaced is not None and not keys and len(view.rows) == view.layout.tokens:
        gap = (view.fresh_v.float() - view.replaced.v).square().sum((1, 2))
        # Where nothing is stored, anything may have stood.
        return torch.where(_stored(view), gap, 0.0)
    return _in_one_pass(view, keys=keys, values=values)


def _in_one_pass(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Return it of all segments together."""
    layout, every = view.layout, len(view.rows) == view.layout.tokens
    deviation = torch.zeros(layout.tokens, device=view.k.device)
    segments = [
        (segment, stored.layer(view.layer))
        for segment, stored in zip(layout.segments, view.cached, strict=True)
        if stored is not None and not segment.uncached and segment.tokens
    ]
    for number, fresh in enumerate((view.fresh_k, view.fresh_v)):
        if not (keys, values)[number]:
            continue
        shape = layout.tokens, *fresh.shape[1:]
        old = torch.zeros(shape, dtype=fresh.dtype, device=fresh.device)
        for segment, stored in segments:
            old[segment.start : segment.end].copy_(stored[number], non_blocking=True)
        gap = (fresh.float() - (old if every else old[view.rows])).square().sum((1, 2))
        deviation = deviation + gap if every else deviation.index_add(0, view.rows, gap)
    return torch.where(_stored(view), deviation, 0.0)


def _stored(view: LayerView) -> Tensor:
    """Return whether KV is stored of each token of the prompt `[n]`."""

    def make() -> Tensor:
        found = torch.zeros(view.layout.tokens, dtype=torch.bool)
        for segment, stored in zip(view.layout.segments, view.cached, strict=True):
            found[segment.start : segment.end] = stored is not None and not segment.uncached
        return found

    return view.layout.once("whether KV is stored", make)


class GpuKernels(DeviceKernels):
    """Kernels in Triton, and recordings of several layers."""

    placer = GpuPlacer

    # -- rows of hidden states --------------------------------------------------------------------

    def normalise(self, norm: Any, x: Tensor) -> Tensor:
        if not is_plain(norm):
            return super().normalise(norm, x)
        if row_kernels.can_normalise(x):
            return row_kernels.normalise(x, norm.weight, norm.variance_epsilon)
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)

    def add_and_normalise(self, norm: Any, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        if is_plain(norm) and row_kernels.can_normalise(x):
            return row_kernels.add_and_normalise(x, added, norm.weight, norm.variance_epsilon)
        return super().add_and_normalise(norm, x, added)

    def multiply_gated(self, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        if activation is F.silu and row_kernels.can_multiply(gate_up):
            return row_kernels.silu_product(gate_up)
        return super().multiply_gated(gate_up, activation)

    # -- the KV cache -----------------------------------------------------------------------------

    def rotate(self, rope: RotaryTable, x: Tensor, positions: Tensor) -> Tensor | None:
        if not rotation_gpu.supports(x):
            return None
        return rotation_gpu.rotate(x, positions, cos=rope.cos, sin=rope.sin)

    def write(
        self, rope: RotaryTable, kv: tuple[Tensor, Tensor], k: Tensor, v: Tensor, rows: Tensor
    ) -> bool:
        takes = rotation_gpu.supports(k) and kv[0].dtype == k.dtype
        if takes:
            rotation_gpu.write(k, v, *kv, positions=rows, cos=rope.cos, sin=rope.sin)
        return takes

    def write_with_queries(
        self,
        rope: RotaryTable,
        kv: tuple[Tensor, Tensor],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        *,
        into: Tensor | None = None,
        replaced: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | None:
        takes = rotation_gpu.supports(k) and rotation_gpu.supports(q)
        if not (takes and kv[0].dtype == k.dtype):
            return None
        return rotation_gpu.write_with_queries(
            q, k, v, *kv, positions=positions, cos=rope.cos, sin=rope.sin, into=into,
            replaced=replaced,
        )  # fmt: skip

    def can_keep(self, k_all: Tensor) -> bool:
        return rotation_gpu.supports(k_all)

    def plan_shift(
        self, view: LayerView, planned: PlannedShift, weights: Tensor, first: int
    ) -> Callable[..., None] | None:
        if not shift_gpu.supports(view.k):
            return None
        lines = shift_gpu.programs(planned.documents)
        plan = ShiftPlan.of(lines, planned.places, weights, first, view.k.device)
        return partial(shift_gpu.shift_view, plan)

    def squared_deviation(self, view: LayerView, *, keys: bool, values: bool) -> Tensor | None:
        return squared_deviation(view, keys=keys, values=values)

    # -- attention --------------------------------------------------------------------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float) -> Tensor | None:
        if not index_causal_attention.supports(q, q.shape[2]):
            return None
        return index_causal_attention.attend(q, k, v, rows, scale)

    def attend_with_scores(
        self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weights: Tensor, scale: float
    ) -> tuple[Tensor, Tensor] | None:
        if not attention_scores_gpu.supports(q, q.shape[2]):
            return None
        return attention_scores_gpu.attend_with_scores(q, k, v, rows, weights, scale)

    def attend_runs(
        self, q: Tensor, k: Tensor, v: Tensor, runs: Tensor, longest: int, scale: float
    ) -> Tensor | None:
        group = q.shape[0] * q.shape[1] // runs.shape[1]
        if not ragged_attention_gpu.supports(q, k, group):
            return None
        return ragged_attention_gpu.attend(q, k, v, runs, longest, scale)

    # -- many layers at once ----------------------------------------------------------------------

    def decode_steps(self, decoder: DecoderModel, pool: KVPool) -> Callable[..., Tensor] | None:
        if not recorded_steps.supports(decoder, pool):
            return None
        return RecordedSteps(decoder, pool).step

    def recordings(self, decoder: DecoderModel, pool: KVPool) -> PrefillRecordings | None:
        if not recorded_layers.supports(decoder, pool):
            return None
        return PrefillRecordings(decoder, pool)
