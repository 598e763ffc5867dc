"""The header of a chunk: its key, its spec, and a digest of every 64-token block of every tensor.

The key says which text the chunk belongs to. Two chunks of equally many tokens have the same spec,
so without the key a file under a wrong name would be read as another document's KV.

Everything except the key and the digests follows from the spec, so a parsed header must describe
exactly the layout of its own spec. The header carries a checksum of itself (see
`safetensors_header.py`), so its digests can be trusted and any block can be verified without the
others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from kvstitch.kvstore.errors import ChunkCorrupt, ChunkRefused, ChunkSpecError
from kvstitch.kvstore.format.chunk_identity import KEY_LENGTH, ChunkSpec, is_chunk_key
from kvstitch.kvstore.format.safetensors_header import (
    BlockDigests,
    Buffer,
    build_sealed,
    parse_sealed,
)
from kvstitch.kvstore.format.tensor_layout import (
    blocks_layout,
    descriptions,
    layer_entries,
    tensor_layout,
)

FORMAT = "kvstitch-chunk"
VERSION = "4"  # 3 lost parts that were not aligned; 2 had no key
# Written for a chunk that was not given a key yet. It is as long as a key, so that naming a chunk
# does not change its size, and it is no key, so that a store refuses it under every key.
UNNAMED = "-" * KEY_LENGTH
VALUES_ARE_KEYS = "keys"
SEALED_FORMAT = "kvstitch-sealed-chunk"
SEALED_VERSION = "2"


Differing = Callable[[str, BlockDigests, Sequence[int], Iterable[memoryview]], list[int]]
"""Given a tensor's name, its digests, and some of its blocks with their contents, returns those
blocks that are not as written. That of a sealed chunk opens the contents where they are."""


def differing(
    name: str, digests: BlockDigests, blocks: Sequence[int], contents: Iterable[memoryview]
) -> list[int]:
    """Return the blocks that differ from their digests."""
    return digests.differing(blocks, contents)


@dataclass(frozen=True)
class Seal:
    """What a sealed chunk's header says of its encryption (see sealed_chunk.py)."""

    key_id: str
    salt: str
    inner: str


@dataclass(frozen=True)
class ChunkHeader:
    raw: bytes  # the header's bytes as stored, length prefix and padding included
    key: str  # the chunk's key; `UNNAMED` before a store has given it one
    spec: ChunkSpec
    # The digests of each tensor's blocks, by tensor name; of a sealed chunk, tags.
    digests: Mapping[str, BlockDigests]
    nbytes: int  # bytes of the data section
    seal: Seal | None = None

    @property
    def data_start(self) -> int:
        """Offset of the data section in the file in bytes; a multiple of 64."""
        return len(self.raw)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file, header and data."""
        return len(self.raw) + self.nbytes

    def layer_range(self, layer: int) -> tuple[int, int]:
        """Return the byte range `[start, end)` of one layer in the data section."""
        if not 0 <= layer < self.spec.layers:
            raise ChunkSpecError(f"layer {layer} is outside a chunk of {self.spec.layers} layers")
        size = self.nbytes // self.spec.layers
        return layer * size, (layer + 1) * size

    def bad_blocks(
        self, layer: int, blocks: Sequence[int], raw: memoryview, check: Differing = differing
    ) -> list[int]:
        """Return those of the given blocks (ascending) that differ from what was written; `raw` is
        laid out like a layer that has only their tokens."""
        places = blocks_layout(self.spec, tuple(blocks))
        if len(raw) != places.nbytes:
            raise ChunkCorrupt(f"layer {layer} has {len(raw)} bytes, not {places.nbytes}")
        bad: set[int] = set()
        for entry, pieces in zip(layer_entries(self.spec, layer), places.pieces, strict=False):
            contents = map(raw.__getitem__, pieces)
            bad.update(check(entry.name, self.digests[entry.name], blocks, contents))
        return sorted(bad)


def refuse_bad(layer: int, bad: Sequence[int]) -> None:
    """Raise ChunkCorrupt that names the bad blocks of a layer, if there are any."""
    if bad:
        raise ChunkCorrupt(f"layer {layer} differs in blocks {', '.join(map(str, bad))}")


def build_header(
    spec: ChunkSpec,
    digests: Mapping[str, BlockDigests],
    key: str = UNNAMED,
    seal: Seal | None = None,
) -> ChunkHeader:
    """Build the header of a chunk from the digests of its tensors, given by tensor name."""
    metadata = {
        "format": FORMAT if seal is None else SEALED_FORMAT,
        "version": VERSION if seal is None else SEALED_VERSION,
        "key": key,
        "fingerprint": spec.fingerprint,
        "codec": spec.codec,
        "dtype": spec.dtype,
        "layers": str(spec.layers),
        "kv_heads": str(spec.kv_heads),
        "head_dim": str(spec.head_dim),
        "tokens": str(spec.tokens),
    }
    if spec.values_are_keys:
        metadata["values"] = VALUES_ARE_KEYS
    if spec.state:
        metadata["state"] = str(spec.state)
    entries = tensor_layout(spec)
    ordered = {entry.name: digests[entry.name] for entry in entries}
    metadata.update((f"blocks.{name}", of_tensor.text) for name, of_tensor in ordered.items())
    if seal is not None:
        metadata |= {f"seal.{name}": text for name, text in asdict(seal).items()}
    return ChunkHeader(build_sealed(metadata, entries), key, spec, ordered, entries[-1].end, seal)


def chunk_file_bytes(spec: ChunkSpec) -> int:
    """Return the bytes that a chunk of this shape takes, with header and checksums."""
    nothing = BlockDigests.of(memoryview(b"") for _ in range(spec.blocks))
    return build_header(spec, {entry.name: nothing for entry in tensor_layout(spec)}).file_bytes


def parse_header(buffer: Buffer) -> ChunkHeader:
    """Parse and verify a header; `buffer` may continue into the data. Raises ChunkCorrupt:
    truncated, not a chunk, or changed since it was written; ChunkRefused: intact, of an unknown
    format version or codec."""
    sealed = parse_sealed(buffer)
    metadata = sealed.metadata
    form = metadata.get("format"), metadata.get("version")
    if form not in ((FORMAT, VERSION), (SEALED_FORMAT, SEALED_VERSION)):
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
            values_are_keys=metadata.get("values") == VALUES_ARE_KEYS,
            state=int(metadata.get("state", 0)),
        )
        entries = tensor_layout(spec)
    except ChunkSpecError as error:
        raise ChunkRefused(str(error)) from error
    except (KeyError, ValueError) as error:
        raise ChunkCorrupt(f"metadata incomplete: {error}") from error
    key = metadata.get("key", "")
    if key != UNNAMED and not is_chunk_key(key):
        raise ChunkCorrupt(f"the header names no chunk key: {key!r}")
    digests: dict[str, BlockDigests] = {}
    for name, description in descriptions(spec).items():
        if sealed.tensors.get(name) != description:
            raise ChunkCorrupt(f"tensor {name} is not laid out as its spec says")
        text = metadata.get(f"blocks.{name}", "")
        digests[name] = BlockDigests.parse(text, spec.blocks)
    seal = None
    if form[0] == SEALED_FORMAT:
        seal = Seal(*(metadata.get(f"seal.{name}", "") for name in Seal.__dataclass_fields__))
    return ChunkHeader(sealed.raw, key, spec, digests, entries[-1].end, seal)
