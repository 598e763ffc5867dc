"""Stored KV in work that all ranks do: only rank 0 has its bytes, and knows when they arrive."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.forward.prefill import Arrival
from service.worker.methods.layer_view import CachedSegment
from service.worker.model.decoder import DecoderModel
from service.worker.parallel.exchange import Exchange
from service.worker.steps import Steps

WAITS, ARRIVED, LOST = range(3)


class SegmentGone(Exception):
    """What this work reads will not arrive."""


class SharedSegment:
    """This rank's heads of a stored segment; implements `CachedSegment`."""

    def __init__(
        self,
        exchange: Exchange,
        decoder: DecoderModel,
        tokens: int,
        stored: CachedSegment | None = None,
    ) -> None:
        self.tokens = tokens
        self._exchange = exchange
        self._decoder = decoder
        self._stored = stored
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            self._layers[layer] = self._exchanged(layer)
        return self._layers[layer]

    def _exchanged(self, layer: int) -> tuple[Tensor, Tensor]:
        decoder, whole = self._decoder, None
        if self._stored is not None:
            whole = torch.stack([x.to(decoder.device) for x in self._stored.layer(layer)])
        shape = (2, self.tokens, decoder.own_kv_heads, decoder.head_dim)
        out = torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
        k, v = self._exchange.heads_from_first(out, whole)
        return k, v

    def arrived(self, layer: int) -> bool:
        return layer in self._layers

    def stored(self, layer: int) -> None:
        return None


class SharedArrival:
    """Rank 0's waiting for a layer of stored KV, on all ranks: in as many steps."""

    def __init__(self, exchange: Exchange, arrival: Arrival | None = None) -> None:
        self._exchange = exchange
        self._arrival = arrival

    def __call__(self, layer: int) -> Steps[None]:
        if self._arrival is None:
            while (state := self._exchange.from_first(0)) == WAITS:
                yield None
            if state == LOST:
                raise SegmentGone
            return
        try:
            for awaited in self._arrival(layer):
                self._exchange.from_first(WAITS)
                yield awaited
        except Exception:
            self._exchange.from_first(LOST)
            raise
        self._exchange.from_first(ARRIVED)
