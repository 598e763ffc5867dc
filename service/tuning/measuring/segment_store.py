"""Stored KV of a prompt's segments, computed as the service precomputes it.

A segment is computed once per prefix and codec, however many configurations read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvstore import EncodedChunk, encode_chunk
from service.tuning.measuring.prompt_ids import Prompt
from service.worker.api import Address, Addressing, DecoderAdapter, compute_chunk


class SegmentStore:
    """The segments of one prompt, as the engine would read them from the memory tier."""

    def __init__(self, adapter: DecoderAdapter) -> None:
        self._adapter = adapter
        # There is one model, so the fingerprint need not tell models apart.
        self._addressing = Addressing(adapter, fingerprint="fidelity", codec="raw")
        self._encoded: dict[tuple[str, str], EncodedChunk] = {}

    def prefix(self, prompt: Prompt, prefix_mode: str) -> tuple[int, ...]:
        """Token ids that documents are precomputed behind."""
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
            raw = codec == "raw"
            found = compute_chunk(self._adapter, address) if raw else self._encode(address, codec)
            self._encoded[address.key, codec] = found
        return found

    def _encode(self, address: Address, codec: str) -> EncodedChunk:
        """What precompute would store with another codec: it encodes the same tensors."""
        raw = self._chunk(address, "raw")
        layers = [raw.layer(layer) for layer in range(self._adapter.layers)]
        spec = replace(address.spec, codec=codec)
        return encode_chunk(spec, [k for k, _ in layers], [v for _, v in layers])
