"""Verifies a chunk, or some of its blocks, while it arrives, and opens it where it is sealed.

Bytes that were just copied are still in the CPU's cache, and the disk or socket delivers the next
ones while these are checked.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvstitch.encryption.keyring import Keyring
from kvstitch.kvstore.errors import ChunkCorrupt, ChunkRefused
from kvstitch.kvstore.format.buffers import view_bytes
from kvstitch.kvstore.format.chunk import (
    BlockSelection,
    EncodedBlocks,
    EncodedChunk,
    LayerBlocks,
    check_selection,
)
from kvstitch.kvstore.format.chunk_header import UNNAMED, ChunkHeader, differing, refuse_bad
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.kvstore.format.sealed_chunk import Opening
from kvstitch.kvstore.format.tensor_layout import blocks_layout


class Verifier:
    """Checks every layer as soon as it is there. It is the `ChunkProgress` of one read.

    Args:
        key: refuse the chunk of any other key, before its data are verified.
        expect: refuse any other spec, too.
        keys: where the key of a sealed chunk is looked for; None: this store has none.
        selection: the blocks that are read, which arrive in the order of `selection_ranges`; None:
            the whole chunk, of which the first bad block ends the read.
    """

    def __init__(
        self,
        key: str,
        expect: ChunkSpec | None = None,
        keys: Keyring | None = None,
        selection: BlockSelection | None = None,
    ) -> None:
        self._key = key
        self._expect = expect
        self._keys = keys
        self._selection = selection
        self._opening: Opening | None = None
        self._header: ChunkHeader | None = None
        # Layer, blocks, and where their bytes arrive: start and end.
        self._parts: list[tuple[int, tuple[int, ...], int, int]] = []
        self._data: Tensor | None = None
        self._checked = 0  # parts
        self._bad: dict[int, list[int]] = {}

    def begin(self, header: ChunkHeader) -> None:
        """Check whether it is the right chunk, and find its key.

        Raises:
            ChunkRefused: it is another chunk.
            ChunkLocked: it is sealed, and its key is not here.
            ChunkSpecError: it does not have the selected blocks.
        """
        require_chunk(header, self._key, self._expect)
        spec, selection = header.spec, self._selection
        if selection is None:
            selection = dict.fromkeys(range(spec.layers), tuple(range(spec.blocks)))
        else:
            check_selection(selection, spec)
        self._opening = None if header.seal is None else Opening(header, self._keys)
        self._parts, end = [], 0
        for layer, blocks in selection.items():
            start, end = end, end + blocks_layout(spec, blocks).nbytes
            self._parts.append((layer, blocks, start, end))
        self._header = header

    def __call__(self, header: ChunkHeader, data: Tensor, done: int) -> None:
        """Check every layer that lies in the first `done` bytes of `data`. Raises ChunkCorrupt: a
        byte of a whole chunk differs from what was written."""
        if header is not self._header:
            self.begin(header)
        if data is not self._data:  # a tier may begin anew, in other memory
            self._data, self._checked = data, 0
            self._bad.clear()
        if self._checked == len(self._parts) or self._parts[self._checked][3] > done:
            return
        view = view_bytes(data)
        check = differing if self._opening is None else self._opening.differing
        for layer, blocks, start, end in self._parts[self._checked :]:
            if end > done:
                return
            if wrong := header.bad_blocks(layer, blocks, view[start:end], check):
                if self._selection is None:
                    refuse_bad(layer, wrong)
                self._bad[layer] = wrong
            self._checked += 1

    def chunk(self, read: EncodedChunk, owner: str) -> EncodedChunk:
        """Check what is left of a whole chunk, and return it in the clear."""
        self(read.header, read.data, read.header.nbytes)
        if self._opening is None:
            return replace(read, owner=owner)
        return EncodedChunk(self._opening.plain_header, read.data, self._opening.owner)

    def blocks(
        self, header: ChunkHeader, data: Tensor
    ) -> tuple[EncodedBlocks, list[tuple[int, int]]]:
        """Check what is left; return the intact blocks, and (layer, block) of the others. Raises
        ChunkCorrupt: `data` does not have the length of the selected blocks."""
        self(header, data, data.numel())
        expected = self._parts[-1][3] if self._parts else 0
        if expected != data.numel():
            raise ChunkCorrupt(f"the blocks have {data.numel()} bytes, not {expected}")
        layers: dict[int, LayerBlocks] = {}
        for layer, blocks, start, end in self._parts:
            held = LayerBlocks(blocks, data[start:end])
            wrong = self._bad.get(layer)
            layers[layer] = _drop_blocks(held, wrong, header.spec) if wrong else held
        bad = [(layer, block) for layer, wrong in self._bad.items() for block in wrong]
        return EncodedBlocks(header.spec, layers), bad


def require_chunk(header: ChunkHeader, key: str, expect: ChunkSpec | None) -> None:
    """Raise ChunkRefused unless it is the wanted chunk: by key, and by spec if one is expected."""
    if header.key != key:
        stated = "has no key" if header.key == UNNAMED else f"has the key {header.key}"
        raise ChunkRefused(f"another chunk than expected: it {stated}")
    if expect is None or header.spec == expect:
        return
    fields = [
        name
        for name in ChunkSpec.__dataclass_fields__
        if getattr(header.spec, name) != getattr(expect, name)
    ]
    raise ChunkRefused(f"another chunk than expected: {', '.join(fields)} differ")


def _drop_blocks(held: LayerBlocks, wrong: Sequence[int], spec: ChunkSpec) -> LayerBlocks:
    """Return the same layer without the bytes of the wrong blocks."""
    pieces = [held.data[:0]]
    for of_tensor in blocks_layout(spec, held.blocks).pieces:
        for block, piece in zip(held.blocks, of_tensor, strict=True):
            if block not in wrong:
                pieces.append(held.data[piece])
    kept = tuple(block for block in held.blocks if block not in wrong)
    return LayerBlocks(kept, torch.cat(pieces))
