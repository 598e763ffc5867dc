"""Prompts as token ids, and stored KV of their segments, computed as the service does it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from weakref import WeakMethod

from kvstitch_tune.single_prompts import compute_chunk
from kvstore import EncodedChunk, MemoryTier, TierFull, encode_chunk
from service.worker.api import Address, Addressing, ChunkPrefill, DecoderModel
from service.worker.methods.api import Prefix


@dataclass(frozen=True)
class Prompt:
    """One prompt as token ids.

    Attributes:
        answers: The accepted texts, empty if none is known.
        behind: For a prefix mode in which other documents stand between S and a document when it is
            precomputed, the prefixes of each document: each of them some documents, and in a mode
            `primer` there may be several. Further modes to compare have names that begin with
            `primer` or `neighbours`.
        sources: Where each document comes from, if that is known: the name of the whole document,
            and the number of this piece within it, from 0.
    """

    task: str
    system: tuple[int, ...]
    documents: tuple[tuple[int, ...], ...]
    question: tuple[int, ...]
    answers: tuple[str, ...] = ()
    behind: Mapping[str, Sequence[Sequence[Sequence[Sequence[int]]]]] = field(
        default_factory=dict, compare=False
    )
    sources: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def tokens(self) -> int:
        return len(self.system) + sum(map(len, self.documents)) + len(self.question)

    @property
    def key(self) -> str:
        """16 hex characters that identify the prompt."""
        text = json.dumps([self.task, self.system, self.documents, self.question, self.answers])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


PARTS_BYTES = 1 << 30


def part_store() -> MemoryTier:
    """For KV that several prompts need, and the same prompt again: later stages measure it anew."""
    return MemoryTier(PARTS_BYTES, name="parts")


class SegmentStore:
    """The segments of one prompt, as the engine would read them from the memory tier.

    Args:
        parts: Shared by the stores of all prompts of this model.
    """

    def __init__(self, decoder: DecoderModel, parts: MemoryTier) -> None:
        self._decoder = decoder
        # A reference both ways would keep the KV of many prompts until the next collection of
        # garbage, which comes rarely.
        read = WeakMethod(self._read)

        def read_part(address: Address) -> Future[EncodedChunk | None]:
            own = read()
            assert own is not None
            return own(address)

        self._chunks = ChunkPrefill(decoder, read_part)
        # There is one model, so the fingerprint need not tell models apart.
        self._addressing = Addressing(decoder, fingerprint="fidelity", codec="raw")
        self._parts = parts
        self._encoded: dict[tuple[str, str], EncodedChunk] = {}

    def prefixes(self, prompt: Prompt, prefix_mode: str) -> list[Prefix]:
        """Return what each document is precomputed behind."""
        return [
            self._document(prompt, number, prefix_mode).prefix if ids else Prefix()
            for number, ids in enumerate(prompt.documents)
        ]

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
            self._document(prompt, number, prefix_mode) if ids else None
            for number, ids in enumerate(prompt.documents)
        ]
        return [self._addressing.system(prompt.system, "") if prompt.system else None, *documents]

    def _document(self, prompt: Prompt, number: int, prefix_mode: str) -> Address:
        ids = prompt.documents[number]
        behind = prompt.behind.get(prefix_mode)
        if behind is None:
            return self._addressing.document(ids, prefix_mode, prompt.system, "")
        mode = "neighbours" if prefix_mode.startswith("neighbours") else "primer"
        return self._addressing.document(ids, mode, prompt.system, "", behind[number])

    def _chunk(self, address: Address, codec: str) -> EncodedChunk:
        found = self._encoded.get((address.key, codec))
        if found is None:
            found = self._raw(address) if codec == "raw" else self._encode(address, codec)
            self._encoded[address.key, codec] = found
        return found

    def _raw(self, address: Address) -> EncodedChunk:
        """Return a chunk that was computed for any prompt; else compute it."""
        found = self._parts.read(address.key)
        if found is None:
            found = compute_chunk(self._chunks, address)
            with suppress(TierFull):
                self._parts.put(address.key, found)
        return found

    def _read(self, address: Address) -> Future[EncodedChunk | None]:
        """Return what another chunk stands behind: computed when it is first asked for."""
        found: Future[EncodedChunk | None] = Future()
        found.set_result(self._chunk(address, "raw"))
        return found

    def _encode(self, address: Address, codec: str) -> EncodedChunk:
        """Return what precompute would store with another codec: it encodes the same tensors."""
        raw = self._chunk(address, "raw")
        layers = [raw.layer(layer) for layer in range(self._decoder.layers)]
        spec = replace(address.spec, codec=codec)
        return encode_chunk(spec, [k for k, _ in layers], [v for _, v in layers])
