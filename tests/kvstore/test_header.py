import json
from itertools import pairwise

import pytest
import torch

from kvstore import ChunkCorrupt, ChunkError, ChunkRefused, ChunkSpecError, parse_header
from kvstore.chunk import EncodedChunk, require_spec
from kvstore.codecs import codec_names
from kvstore.header import FORMAT, VERSION, header_bytes, seal
from tests.kvstore.chunks import make_chunk, make_spec


def load(container: bytes) -> EncodedChunk:
    """Parse and verify a container, as a tier and the store together do."""
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


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("bit", [0x01, 0x20, 0x80])
def test_a_flip_of_any_byte_is_detected(codec, bit):
    container = bytearray(make_chunk(make_spec(codec, layers=2, tokens=5)).container())
    assert load(bytes(container))
    for position in range(len(container)):
        container[position] ^= bit
        with pytest.raises(ChunkError):
            load(bytes(container))
        container[position] ^= bit


def test_truncation_at_any_length_is_detected():
    container = make_chunk(make_spec("int8", layers=1, tokens=5)).container()
    for length in range(len(container)):
        with pytest.raises(ChunkCorrupt):
            load(container[:length] or b"\0")


def test_longer_than_the_header_says():
    with pytest.raises(ChunkCorrupt):
        load(make_chunk().container() + b"\0")


def test_parse_gives_back_what_was_built():
    chunk = make_chunk(make_spec("int8"))
    parsed = parse_header(chunk.container())
    assert parsed == chunk.header
    assert parsed.data_start % 64 == 0 and parsed.data_start == header_bytes(chunk.header_bytes)
    assert parsed.file_bytes == chunk.nbytes == len(chunk.container())


@pytest.mark.parametrize("codec", codec_names())
def test_layers_are_contiguous_and_in_order(codec):
    header = make_chunk(make_spec(codec)).header
    ranges = [header.layer_range(layer) for layer in range(3)]
    assert ranges[0][0] == 0 and ranges[-1][1] == header.nbytes
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    for layer in range(3):
        names = [entry.name for entry in header.layer_tensors(layer)]
        extra = {"raw": [], "int8": [".scale"]}.get(codec, [".scale", ".min"])
        assert names == [f"{role}.{layer}{suffix}" for suffix in ["", *extra] for role in "kv"]


def test_a_block_of_rows_is_one_byte_range():
    chunk = make_chunk()
    start, end = chunk.header.rows_range("v.1", 0, 64)
    rows = chunk.data[start:end].view(torch.bfloat16).view(64, 2, 8)
    assert torch.equal(rows, chunk.layer(1)[1][:64])
    with pytest.raises(ChunkSpecError, match="rows"):
        chunk.header.rows_range("v.1", 0, 71)


def test_layer_outside_the_chunk():
    with pytest.raises(ChunkSpecError, match="layer 3"):
        make_chunk().header.layer_range(3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'"format":"{FORMAT}"', '"format":"other-format__"'),
        (f'"version":"{VERSION}"', '"version":"9"'),
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
    assert parse_header(make_chunk(spec).container()).spec == spec


def test_require_spec_names_what_differs():
    header = make_chunk().header
    require_spec(header, None)
    require_spec(header, make_spec())
    with pytest.raises(ChunkRefused, match="fingerprint, tokens differ"):
        require_spec(header, make_spec(fingerprint="b", tokens=7))
