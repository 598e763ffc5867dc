"""Stored KV of a segment, of which only rank 0 has the bytes: every rank gets its heads of a layer
when the layer is first asked for, which all ranks do at the same point of the same work."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.methods.layer_view import CachedSegment
from service.worker.model.decoder import DecoderModel
from service.worker.parallel.exchange import Exchange


class SharedSegment:
    """Rank 0's: gives the others their heads of the stored KV. Implements `CachedSegment`.

    A GPU copies ahead only what has been exchanged (`ArrivingSegment`): all ranks copy alike.
    """

    def __init__(self, stored: CachedSegment, exchange: Exchange, device: torch.device) -> None:
        self._stored = stored
        self._exchange = exchange
        self._device = device
        self._sent: set[int] = set()

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        k, v = self._stored.layer(layer)
        if layer not in self._sent:
            self._exchange.send_heads(k.to(self._device), v.to(self._device))
            self._sent.add(layer)
        own = self._exchange.own(k.shape[1])
        return k[:, own], v[:, own]

    def arrived(self, layer: int) -> bool:
        return layer in self._sent

    def stored(self, layer: int) -> None:
        return None


class ReceivedSegment:
    """Another rank's: what it has received, kept for as long as the prompt's prefill takes."""

    def __init__(self, tokens: int, exchange: Exchange, decoder: DecoderModel) -> None:
        self._shape = (2, tokens, decoder.own_kv_heads, decoder.head_dim)
        self._exchange = exchange
        self._decoder = decoder
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            decoder = self._decoder
            out = torch.empty(self._shape, dtype=decoder.dtype, device=decoder.device)
            self._layers[layer] = self._exchange.receive_heads(out)
        return self._layers[layer]

    def arrived(self, layer: int) -> bool:
        return layer in self._layers

    def stored(self, layer: int) -> None:
        return None
