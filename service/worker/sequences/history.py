"""KV of earlier turns of a conversation, for a prompt whose documents are others.

    turn t      S │ D_1 │ D_2 │ D_3 │ Q_1 │ answer
                                      └── H ─────┘
    turn t + 1  S │ D_4 │ D_2 │ D_5 │ H │ Q_2

No prompt begins with an earlier one then. H was computed over the documents of the turn before: it
is taken from that prompt, which is in the prefix cache, and placed behind the documents like one
more of them, which was precomputed behind something else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.kv.pool import SequenceKV
from service.worker.model.decoder import DecoderModel
from service.worker.prefix_cache.prompts import History


class HistoryKV:
    """KV of neighbouring tokens of a sequence, copied out of the pool; implements `CachedSegment`.

    It is copied at once, because the sequence may be evicted later.

    Args:
        decoder: the model.
        kv: with every token in place.
        rows: which tokens.
    """

    def __init__(self, decoder: DecoderModel, kv: SequenceKV, rows: slice) -> None:
        positions = torch.arange(rows.start, rows.stop, device=decoder.device)
        self._layers: list[tuple[Tensor, Tensor]] = []
        for layer in range(decoder.layers):
            k, v = (x[:, rows].transpose(0, 1) for x in kv.prompt_layer(layer, rows.stop))
            self._layers.append((decoder.ropes[layer].unrotate(k, positions), v.contiguous()))

    @classmethod
    def of(cls, decoder: DecoderModel, history: History) -> HistoryKV:
        """Copy what a prompt takes from an earlier one in the KV pool."""
        prompt = history.prompt
        assert isinstance(prompt.kv, SequenceKV), "only prompts in the pool are looked through"
        start = prompt.question_start
        return cls(decoder, prompt.kv, slice(start, start + history.tokens))

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]
