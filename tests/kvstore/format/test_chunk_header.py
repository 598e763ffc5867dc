import json
from itertools import pairwise

import pytest
import torch

from kvstitch.kvstore import ChunkCorrupt, ChunkError, ChunkRefused, ChunkSpecError, parse_header
from kvstitch.kvstore.format.buffers import view_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import FORMAT, UNNAMED, VERSION
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.safetensors_header import header_bytes, seal
from kvstitch.kvstore.format.tensor_layout import layer_entries
from kvstitch.kvstore.format.verifier import require_chunk
from tests.kvstore.chunks import chunk_file, make_chunk, make_spec, tensors_of


def load(container: bytes) -> EncodedChunk:
    """Parse and verify a chunk file, as a tier and the store do together."""
    header = parse_header(container)
    body = bytearray(container[header.data_start :]) + b"\0"  # torch refuses empty buffers
    data = torch.frombuffer(body, dtype=torch.uint8)[:-1]
    chunk = EncodedChunk(header, data)
    chunk.verify()
    return chunk


def reseal(raw: bytes, old: str, new: str) -> bytes:
    """A header with one text replaced and a right checksum, as another program might write it."""
    assert raw.count(old.encode()) >= 1
    changed = raw.replace(old.encode(), new.encode())
    stated = json.loads(raw[8:])["__metadata__"]["header_checksum"]
    size = len(changed) + -len(changed) % 64
    changed = (size - 8).to_bytes(8, "little") + changed[8:].ljust(size - 8)
    return seal(changed, stated)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bit", [0x01, 0x20, 0x80])
def test_a_flip_of_any_byte_is_detected(codec, bit):
    container = bytearray(chunk_file(make_chunk(make_spec(codec, layers=2, tokens=5))))
    assert load(bytes(container))
    for position in range(len(container)):
        container[position] ^= bit
        with pytest.raises(ChunkError):
            load(bytes(container))
        container[position] ^= bit


def test_truncation_at_any_length_is_detected():
    container = chunk_file(make_chunk(make_spec("int8", layers=1, tokens=5)))
    for length in range(len(container)):
        with pytest.raises(ChunkCorrupt):
            load(container[:length] or b"\0")


def test_longer_than_the_header_says():
    with pytest.raises(ChunkCorrupt):
        load(chunk_file(make_chunk()) + b"\0")


def test_parse_gives_back_what_was_built():
    chunk = make_chunk(make_spec("int8"))
    parsed = parse_header(chunk_file(chunk))
    assert parsed == chunk.header
    assert parsed.data_start % 64 == 0 and parsed.data_start == header_bytes(chunk.header_bytes)
    assert parsed.file_bytes == chunk.nbytes == len(chunk_file(chunk))


@pytest.mark.parametrize("codec", CODECS)
def test_layers_are_contiguous_and_in_order(codec):
    header = make_chunk(make_spec(codec)).header
    ranges = [header.layer_range(layer) for layer in range(3)]
    assert ranges[0][0] == 0 and ranges[-1][1] == header.nbytes
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    for layer in range(3):
        names = [entry.name for entry in layer_entries(header.spec, layer)]
        extra = {"raw": [], "int8": ["k.scale", "v.scale"]}.get(
            codec, ["k.scale", "v.scale", "k.min", "v.min"]
        )
        if codec == "k8v8":
            extra.remove("v.min")
        assert [name.replace(f".{layer}", "") for name in names] == ["k", "v", *extra]


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_is_one_byte_range_of_each_tensor(codec):
    """The ranges of the blocks cover the tensor, and each holds the bytes of its rows."""
    chunk = make_chunk(make_spec(codec, tokens=150))
    for entry in tensors_of(chunk.header).values():
        ranges = [entry.blocks_range(block, block) for block in range(3)]
        assert ranges[0][0] == entry.start and ranges[-1][1] == entry.end
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert entry.blocks_range(0, 1) == (ranges[0][0], ranges[1][1])
        assert entry.blocks_range(1, 2) == (ranges[1][0], ranges[2][1])
        tensor = chunk.data[entry.start : entry.end].view(entry.dtype).view(entry.shape)
        rows = 64 // entry.tokens_per_row
        start, end = ranges[1]
        part = chunk.data[start:end].view(entry.dtype).view(rows, *entry.shape[1:])
        assert torch.equal(part, tensor[rows : 2 * rows])


def test_bad_blocks_are_named():
    chunk = make_chunk(make_spec("int4", tokens=200))
    places = {entry.name: entry for entry in tensors_of(chunk.header).values()}
    for name, block in (("k.1", 2), ("v.1.scale", 0), ("v.1.min", 2), ("k.1.scale", 3)):
        chunk.data[places[name].blocks_range(block, block)[0]] ^= 1
    raw = chunk.layer_bytes(1)
    assert chunk.header.bad_blocks(1, range(4), view_bytes(raw)) == [0, 2, 3]
    assert chunk.header.bad_blocks(0, range(4), view_bytes(chunk.layer_bytes(0))) == []
    with pytest.raises(ChunkCorrupt, match="bytes, not"):
        chunk.header.bad_blocks(1, range(3), view_bytes(raw))


def test_layer_outside_the_chunk():
    with pytest.raises(ChunkSpecError, match="layer 3"):
        make_chunk().header.layer_range(3)


VERSION_1 = (
    b"\xf8\x01\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"format":"kvstitch-chunk","version":"1","fingerprint":"model-a",'
    b'"codec":"raw","dtype":"float16","layers":"1","kv_heads":"1","head_dim":"2","tokens":"3",'
    b'"checksum.k.0":"xxh3_128:a592c3833a5659b8324f8c7e889e6791",'
    b'"checksum.v.0":"xxh3_128:3c2e3175a5e76b28da710734442df729",'
    b'"header_checksum":"xxh3_128:183edf1cc58c4671b08335d4a3097c9f"},'
    b'"k.0":{"dtype":"F16","shape":[3,1,2],"data_offsets":[0,12]},'
    b'"v.0":{"dtype":"F16","shape":[3,1,2],"data_offsets":[12,24]}}'
).ljust(512) + bytes(24)


def test_a_file_that_the_first_version_wrote_is_refused():
    with pytest.raises(ChunkRefused, match="version '1'"):
        parse_header(VERSION_1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'"format":"{FORMAT}"', '"format":"other-format__"'),
        (f'"version":"{VERSION}"', '"version":"1"'),
        (f'"version":"{VERSION}"', '"version":"3"'),
        (f'"version":"{VERSION}"', '"version":"5"'),
        ('"codec":"raw"', '"codec":"zip"'),
    ],
)
def test_sound_headers_of_another_format_are_refused(old, new):
    raw = make_chunk().header_bytes
    with pytest.raises(ChunkRefused):
        parse_header(reseal(raw, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"tokens":"70"', '"tokens":"71"'),
        ('"tokens":"70"', '"tokens":"xx"'),
        ('"shape":[70,2,8]', '"shape":[70,8,2]'),
        ('"fingerprint"', '"fingerprinT"'),
        ('"blocks.v.1"', '"blocks.v.7"'),
        ('"blocks.v.1":"xxh3_64:', '"blocks.v.1":"xxh3_64:AAAA'),
    ],
)
def test_sealed_headers_that_contradict_themselves_are_corrupt(old, new):
    raw = make_chunk().header_bytes
    with pytest.raises(ChunkCorrupt):
        parse_header(reseal(raw, old, new))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"__metadata__":1}', b'{"__metadata__":{"a":1}}', b"[" * 5000]
)
def test_other_files_are_corrupt(text):
    text += b" " * (-(8 + len(text)) % 64)
    with pytest.raises(ChunkCorrupt):
        parse_header(len(text).to_bytes(8, "little") + text)


def test_a_fingerprint_cannot_pose_as_the_checksum():
    spec = make_spec(fingerprint='"header_checksum":"xxh3_128:' + "0" * 32 + '"')
    assert parse_header(chunk_file(make_chunk(spec))).spec == spec


def test_require_chunk_names_what_differs():
    header = make_chunk().header
    require_chunk(header, UNNAMED, None)
    require_chunk(header, UNNAMED, make_spec())
    with pytest.raises(ChunkRefused, match="fingerprint, tokens differ"):
        require_chunk(header, UNNAMED, make_spec(fingerprint="b", tokens=7))
