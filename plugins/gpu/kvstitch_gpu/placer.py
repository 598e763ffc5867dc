"""Places stored KV in a prompt's cache on a GPU: groups of layers, copied ahead, by one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvstitch_gpu import kv_placement_gpu
from kvstitch_gpu.kv_placement_gpu import Target
from kvstitch_gpu.transfers import GROUP_LAYERS, StagedLayers, Transfers
from service.worker.forward.kv_placement import KVPlacer
from service.worker.kv.pool import SequenceKV
from service.worker.layout import to_device


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
