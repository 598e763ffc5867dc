"""Decode steps of sequences with different LoRA adapters, and of some without any.

    rows of the base model   ──► the kernel or the recordings of `Decoder`  ──┐
    rows of all adapters     ──► one layer loop: base product + own B·A·x   ──┴──► logits by row

Rows of the base model are computed as if no others were there, so that an answer does not depend on
what else is decoded; the kernels that compute whole steps round otherwise than the layer loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from service.worker.forward.decode import Batch, Decodable, compute
from service.worker.forward.decode_graphs import BatchDecoder
from service.worker.kv.pool import KVPool
from service.worker.model.decoder.base import DecoderModel


class LoraDecodable(Decodable, Protocol):
    """A sequence with at least one generated token, and the name of its LoRA adapter or ""."""

    @property
    def lora(self) -> str: ...


class LoraDecoder:
    """Runs decode steps of sequences whose KV is in `pool`."""

    def __init__(self, decoder: DecoderModel, pool: KVPool) -> None:
        self._decoder = decoder
        self._pool = pool
        self._base = BatchDecoder(decoder, pool)

    def step(self, sequences: Sequence[LoraDecodable], drafts: Sequence[Sequence[int]]) -> Tensor:
        """As `Decoder.step`."""
        pairs = list(zip(sequences, drafts, strict=True))
        base = [pair for pair in pairs if not pair[0].lora]
        own = [pair for pair in pairs if pair[0].lora]
        if not own:
            return self._base.step(sequences, drafts)
        own_logits = self._own(own)
        if not base:
            return own_logits
        base_logits = self._base.step(*zip(*base, strict=True))
        rows = torch.tensor(
            [bool(sequence.lora) for sequence, draft in pairs for _ in range(1 + len(draft))],
            device=own_logits.device,
        )
        logits = own_logits.new_empty(len(rows), own_logits.shape[1])
        logits[rows], logits[~rows] = own_logits, base_logits
        return logits

    def _own(self, pairs: Sequence[tuple[LoraDecodable, Sequence[int]]]) -> Tensor:
        """Logits of sequences that all have an adapter, row by row."""
        names = [sequence.lora for sequence, draft in pairs for _ in range(1 + len(draft))]
        batch = Batch.of(
            [sequence for sequence, _ in pairs],
            [draft for _, draft in pairs],
            windows=self._decoder.windows,
        )
        decoder = self._decoder.with_loras(names)
        return compute(decoder, self._pool, batch.to(decoder.device))
