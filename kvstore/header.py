"""The header of a chunk: what it is, and a digest of every 64-token block of every tensor.

Everything but the digests follows from the spec, so a parsed header must equal the layout of its
own spec. The header is sealed (:mod:`kvstore.container`), so digests that it holds can be trusted
and any block can be verified alone. Knows no tier and holds no data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstore.buffers import view_bytes
from kvstore.checksum import BlockDigests, Buffer
from kvstore.container import build_sealed, parse_sealed
from kvstore.errors import ChunkCorrupt, ChunkRefused, ChunkSpecError
from kvstore.layout import TensorEntry, blocks_layout, layer_entries, layout
from kvstore.spec import ChunkSpec

FORMAT = "kvstitch-chunk"
VERSION = "2"


@dataclass(frozen=True)
class ChunkHeader:
    """A validated header.

    Attributes:
        raw: the header's bytes as stored, length prefix and padding included.
        spec: what the chunk is.
        digests: tensor name to the digests of its blocks.
        nbytes: bytes of the data section.
    """

    raw: bytes
    spec: ChunkSpec
    digests: Mapping[str, BlockDigests]
    nbytes: int

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """Name to place, in file order."""
        return {entry.name: entry for entry in layout(self.spec)}

    @property
    def data_start(self) -> int:
        """Offset of the data section in the file; a multiple of 64."""
        return len(self.raw)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole container."""
        return len(self.raw) + self.nbytes

    def layer_range(self, layer: int) -> tuple[int, int]:
        """Bytes ``[start, end)`` of one layer in the data section.

        Raises:
            ChunkSpecError: no such layer.
        """
        entries = layer_entries(self.spec, layer)
        return entries[0].start, entries[-1].end

    def bad_blocks(self, layer: int, blocks: Sequence[int], raw: Tensor) -> list[int]:
        """Which of these blocks of a layer differ from what was written.

        Args:
            layer: its number.
            blocks: ascending.
            raw: their bytes (host uint8), laid out as a layer that has only their tokens.

        Raises:
            ChunkCorrupt: ``raw`` has another length than those blocks.
        """
        places = blocks_layout(self.spec, tuple(blocks))
        if raw.numel() != places.nbytes:
            raise ChunkCorrupt(f"layer {layer} has {raw.numel()} bytes, not {places.nbytes}")
        digests = [self.digests[entry.name] for entry in layer_entries(self.spec, layer)]
        view = view_bytes(raw)
        bad = {
            block
            for tensor, block, start, end in places.pieces
            if not digests[tensor].matches(block, view[start:end])
        }
        return sorted(bad)

    def verify_layer(self, layer: int, raw: Tensor) -> None:
        """Check one layer's bytes (host uint8).

        Raises:
            ChunkCorrupt: its length or a block differs; the message names them.
        """
        bad = self.bad_blocks(layer, range(self.spec.blocks), raw)
        if bad:
            raise ChunkCorrupt(f"layer {layer} differs in blocks {', '.join(map(str, bad))}")


def build_header(spec: ChunkSpec, digests: Mapping[str, BlockDigests]) -> ChunkHeader:
    """The header of a chunk whose tensors have these digests."""
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": spec.fingerprint,
        "codec": spec.codec,
        "dtype": spec.dtype,
        "layers": str(spec.layers),
        "kv_heads": str(spec.kv_heads),
        "head_dim": str(spec.head_dim),
        "tokens": str(spec.tokens),
    }
    entries = layout(spec)
    ordered = {entry.name: digests[entry.name] for entry in entries}
    metadata.update((f"blocks.{name}", of_tensor.text) for name, of_tensor in ordered.items())
    return ChunkHeader(build_sealed(metadata, entries), spec, ordered, entries[-1].end)


def parse_header(buffer: Buffer) -> ChunkHeader:
    """Parse and check a header; ``buffer`` may run on into the data.

    Raises:
        ChunkCorrupt: truncated, not a chunk, or any header byte differs from what was written.
        ChunkRefused: a sound header of a format version or codec that is not known here.
    """
    sealed = parse_sealed(buffer)
    metadata = sealed.metadata
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise ChunkRefused(f"format {metadata.get('format')!r} version {metadata.get('version')!r}")
    try:
        spec = ChunkSpec(
            fingerprint=metadata["fingerprint"],
            codec=metadata["codec"],
            dtype=metadata["dtype"],
            layers=int(metadata["layers"]),
            kv_heads=int(metadata["kv_heads"]),
            head_dim=int(metadata["head_dim"]),
            tokens=int(metadata["tokens"]),
        )
        entries = layout(spec)
    except ChunkSpecError as error:
        raise ChunkRefused(str(error)) from error
    except (KeyError, ValueError) as error:
        raise ChunkCorrupt(f"metadata incomplete: {error}") from error
    digests: dict[str, BlockDigests] = {}
    for entry in entries:
        if sealed.tensors.get(entry.name) != entry.description():
            raise ChunkCorrupt(f"tensor {entry.name} is not laid out as its spec says")
        text = metadata.get(f"blocks.{entry.name}", "")
        digests[entry.name] = BlockDigests.parse(text, spec.blocks)
    return ChunkHeader(sealed.raw, spec, digests, entries[-1].end)
