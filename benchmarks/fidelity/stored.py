"""Stored KV of a prompt's segments, made by the service's own precompute lane and store.

One store serves one prompt: a segment is computed once per prefix and codec, however many
configurations read it. Knows no method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.fidelity.prompts import Prompt
from kvstore import EncodedChunk, MemoryTier, TieredStore, encode_chunk
from service.worker.loading.loader import Loader
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address, Addressing

# A store is opened for one prompt; this is more than any prompt takes under every prefix and codec.
MEMORY_BYTES = 8 << 30


class SegmentStore:
    """`segments` gives a prompt's segments as the engine would read them from the memory tier."""

    def __init__(self, adapter: DecoderAdapter, store: TieredStore, loader: Loader) -> None:
        self._adapter = adapter
        self._store = store
        self._lane = PrecomputeQueue(adapter, store, loader)
        # One model per store, so its fingerprint need not tell models apart.
        self._addressing = Addressing(adapter, fingerprint="fidelity", codec="raw")
        self._encoded: dict[tuple[str, str], EncodedChunk] = {}

    @classmethod
    @contextmanager
    def open(cls, adapter: DecoderAdapter) -> Iterator[SegmentStore]:
        with TieredStore([MemoryTier(MEMORY_BYTES)]) as store:
            loader = Loader(store, threads=1)
            loader.start()
            try:
                yield cls(adapter, store, loader)
            finally:
                loader.close()

    def prefix(self, prompt: Prompt, prefix_mode: str) -> tuple[int, ...]:
        """Ids that documents are precomputed behind."""
        return self._addressing.prefix(prefix_mode, prompt.system)

    def segments(
        self, prompt: Prompt, prefix_mode: str, codec: str
    ) -> Sequence[EncodedChunk | None]:
        """S first, then the documents; None for an empty one."""
        return [
            None if address is None else self._chunk(address, codec)
            for address in self._addresses(prompt, prefix_mode)
        ]

    def _addresses(self, prompt: Prompt, prefix_mode: str) -> list[Address | None]:
        documents = [
            self._addressing.document(ids, prefix_mode, prompt.system, "") if ids else None
            for ids in prompt.documents
        ]
        return [self._addressing.system(prompt.system, "") if prompt.system else None, *documents]

    def _chunk(self, address: Address, codec: str) -> EncodedChunk:
        found = self._encoded.get((address.key, codec))
        if found is None:
            found = self._compute(address) if codec == "raw" else self._encode(address, codec)
            self._encoded[address.key, codec] = found
        return found

    def _compute(self, address: Address) -> EncodedChunk:
        self._lane.compute_now(address)
        chunk = self._store.read(address.key, address.spec).chunk
        assert chunk is not None, "the memory tier holds what was just computed"
        return chunk

    def _encode(self, address: Address, codec: str) -> EncodedChunk:
        """What the lane would store under another codec: it encodes the same tensors."""
        raw = self._chunk(address, "raw")
        layers = [raw.layer(layer) for layer in range(self._adapter.layers)]
        spec = replace(address.spec, codec=codec)
        return encode_chunk(spec, [k for k, _ in layers], [v for _, v in layers])
