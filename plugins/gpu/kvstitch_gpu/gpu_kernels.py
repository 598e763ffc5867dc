"""The kernels of a GPU, where they take what is asked; torch computes everything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from kvstitch_gpu import (
    attention_scores_gpu,
    deviation,
    index_causal_attention,
    ragged_attention_gpu,
    recorded_layers,
    recorded_steps,
    rotation_gpu,
    row_kernels,
    shift_gpu,
)
from kvstitch_gpu.placer import GpuPlacer
from kvstitch_gpu.recorded_runs import PrefillRecordings
from kvstitch_gpu.recorded_steps import RecordedSteps
from kvstitch_gpu.shift_gpu import ShiftPlan
from service.worker.kernels.device_kernels import DeviceKernels
from service.worker.kv.pool import KVPool
from service.worker.methods.layer_view import LayerView
from service.worker.methods.stored_kv import PlannedShift
from service.worker.model.decoder import DecoderModel
from service.worker.model.projection import is_plain
from service.worker.model.rope import RotaryTable


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
        return deviation.squared_deviation(view, keys=keys, values=values)

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
