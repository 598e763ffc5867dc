"""Stored KV of a prompt's segments, made by the service's own precompute lane and store.

One store serves one prompt: a segment is computed once per prefix and codec, however many
configurations read it. Knows no method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.fidelity.prompts import Prompt
from kvstore import EncodedChunk, MemoryTier, TieredStore
from service.worker.adapters.base import DecoderAdapter
from service.worker.addressing import Address, Addressing
from service.worker.loader import Loader
from service.worker.precompute import PrecomputeLane

# A store is opened for one prompt; this is more than any prompt takes under every prefix and codec.
MEMORY_BYTES = 8 << 30


class SegmentStore:
    """`segments` gives a prompt's segments as the engine would read them from the memory tier."""

    def __init__(self, adapter: DecoderAdapter, store: TieredStore, loader: Loader) -> None:
        self._adapter = adapter
        self._store = store
        self._lane = PrecomputeLane(adapter, store, loader)
        self._addressing: dict[str, Addressing] = {}

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
        return self._of("raw").prefix(prefix_mode, prompt.system)

    def segments(
        self, prompt: Prompt, prefix_mode: str, codec: str
    ) -> Sequence[EncodedChunk | None]:
        """S first, then the documents; None for an empty one."""
        addressing = self._of(codec)
        documents = [
            addressing.document(ids, prefix_mode, prompt.system, "") if ids else None
            for ids in prompt.documents
        ]
        system = addressing.system(prompt.system, "") if prompt.system else None
        addresses = [system, *documents]
        return [None if address is None else self._read(address) for address in addresses]

    def _read(self, address: Address) -> EncodedChunk:
        outcome = self._store.read(address.key, address.spec)
        if outcome.chunk is None:
            self._lane.compute_now(address)
            outcome = self._store.read(address.key, address.spec)
        assert outcome.chunk is not None, "the memory tier holds what was just computed"
        return outcome.chunk

    def _of(self, codec: str) -> Addressing:
        if codec not in self._addressing:
            # One model per store, so its fingerprint need not tell models apart.
            self._addressing[codec] = Addressing(self._adapter, fingerprint="fidelity", codec=codec)
        return self._addressing[codec]
