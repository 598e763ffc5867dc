"""Prompts as token ids, and stored KV of their segments, computed as the service does it.

One prompt, chunk or sketch runs by itself, without an engine; benchmarks use that, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from weakref import WeakMethod

from kvstitch.kvstore import EncodedChunk, MemoryTier, TierFull, encode_chunk
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV, packed_states
from kvstitch.service.worker.forward.kv_placement import PromptKV
from kvstitch.service.worker.forward.mixing import stored_states
from kvstitch.service.worker.forward.prefill import Capture, prefill
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.api import Prefix
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.layer_view import CachedSegment, PrefillResult
from kvstitch.service.worker.model.addressing import Address, Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.steps import Steps, run
from kvstitch_methods.samkv.selection import SketchedDocument, SketchedPrompt
from kvstitch_methods.samkv.sketch import BLOCK, BlockGrid, Sketch, SketchBuilder
from kvstitch_methods.samkv.sparse_loop import BlockSets, SparseLayerLoop, TokenSource, WholeChunk
from kvstitch_methods.samkv.sparse_method import SparseMethod


def kv_pool(decoder: DecoderModel, tokens: int) -> KVPool:
    """Return a KV pool for `tokens` tokens of this model."""
    return KVPool(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        tokens,
        dtype=decoder.dtype,
        device=decoder.device,
    )


def prefill_ids(
    decoder: DecoderModel,
    ids: Sequence[int],
    *,
    kv: PromptKV | None = None,
    capture: Capture | None = None,
) -> PrefillResult:
    """Full prefill of bare token ids, without stored KV."""
    layout = PromptLayout.of(ids, [], [], uncached=[True], device=decoder.device)
    target = kv or ScratchKV(decoder, layout.tokens)
    return run(prefill(decoder, layout, [None], Vanilla(), target, capture=capture))


def prefill_prompt(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: DenseMethod,
    kv: SequenceKV,
    *,
    eviction: EvictionMethod | None = None,
    capture: Capture | None = None,
) -> PrefillResult:
    """Prefill of one prompt by a dense or two-pass method."""
    return run(prefill(decoder, layout, cached, method, kv, eviction=eviction, capture=capture))


def prefill_sparse(
    decoder: DecoderModel,
    facts: ModelFacts,
    layout: PromptLayout,
    cached: Sequence[EncodedChunk | None],
    method: SparseMethod,
    kv: SequenceKV,
    *,
    sketches: Sequence[Sketch | None],
    block: int = BLOCK,
) -> PrefillResult:
    """Prefill of one prompt by a sparse method, with whole chunks at hand."""
    documents, ends = [], list[TokenSource]()
    for segment, chunk, sketch in zip(layout.documents, cached[1:], sketches, strict=True):
        if chunk is not None and sketch is not None:
            grid = BlockGrid(segment.tokens, block)
            documents.append(SketchedDocument(segment.start, grid, sketch))
            ends.append(WholeChunk(chunk))
    prompt = SketchedPrompt(layout, documents, facts)
    loop = SparseLayerLoop(decoder, prompt, cached[0], ends, kv, fetch=_nothing_to_read)
    return run(method.passes(loop))


def compute_sketch(
    decoder: DecoderModel, ids: Sequence[int], *, prefix: Sequence[int] = (), block: int = BLOCK
) -> Sketch:
    """Return the sketch of a document, in fp32."""
    builder = SketchBuilder(len(prefix), block)
    prefill_ids(decoder, [*prefix, *ids], capture=builder.add)
    return builder.sketch()


def compute_chunk(chunks: ChunkPrefill, address: Address) -> EncodedChunk:
    """Return one chunk, computed as precompute does it; nothing is stored."""
    return run(chunks.compute(address)).chunk


def _nothing_to_read(wanted: BlockSets) -> Steps[list[TokenSource | None]]:
    yield from ()
    return [None for _ in wanted]


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
        adapter: Name of a LoRA adapter that all documents but the first are computed with.
    """

    def __init__(self, decoder: DecoderModel, parts: MemoryTier, *, adapter: str = "") -> None:
        self._decoder = decoder
        self._adapter = adapter
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
            address = self._addressing.document(ids, prefix_mode, prompt.system, "")
        else:
            mode = "neighbours" if prefix_mode.startswith("neighbours") else "primer"
            address = self._addressing.document(ids, mode, prompt.system, "", behind[number])
        if not self._adapter or number == 0:
            return address
        return replace(address, key=f"{address.key}-{self._adapter}", lora=self._adapter)

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
        """Return what precompute would store with another codec: it encodes the same tensors, but
        of states what raw chunks hold in the model's dtype."""
        raw, decoder = self._chunk(address, "raw"), self._decoder
        layers = [raw.layer(layer) for layer in range(decoder.layers)]
        before = range(len(decoder.mixers))
        kept = [stored_states(decoder, raw, layer, len(address.ids)) for layer in before]
        states = packed_states(decoder, codec, kept)
        spec = replace(address.spec, codec=codec, state=decoder.state_bytes(codec))
        return encode_chunk(spec, [k for k, _ in layers], [v for _, v in layers], states=states)
