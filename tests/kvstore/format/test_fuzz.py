"""Random bytes and random damage: a file is either what was written or a ChunkError, never else."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.kvstore import ChunkError, ChunkSpecError, parse_header
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.extra_tensors import encode_extra, parse_extra
from kvstitch.kvstore.format.safetensors_header import header_bytes
from tests.kvstore.chunks import chunk_file, make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.format.test_chunk_header import load

KEY = make_key()
CHUNKS = [make_chunk(make_spec(codec, layers=2, tokens=5)).under(KEY) for codec in CODECS]
EXTRA = encode_extra("sketch", 1, {"a": torch.arange(9), "b": torch.ones(2, 3)}, key=KEY).raw
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def damaged(draw, content):
    """The content with some bytes changed, cut out, repeated, put in or cut off."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        n = draw(st.integers(1, 70))
        match draw(st.sampled_from(["change", "cut", "repeat", "insert", "end"])):
            case "change" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + n]
            case "repeat":
                data[at:at] = data[at : at + n]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=n))
            case "end":
                del data[at:]
    return bytes(data)


def tensor_of(data):
    """The bytes as uint8; torch refuses empty buffers."""
    return torch.frombuffer(bytearray(data) + b"\0", dtype=torch.uint8)[:-1]


@settings(max_examples=300, deadline=None)
@given(data=st.sampled_from(CHUNKS).flatmap(lambda chunk: damaged(chunk_file(chunk))))
def test_damaged_chunks(data):
    try:
        chunk = load(data)
    except ChunkError:
        return
    assert any(same_chunk(chunk, one) and chunk.header.key == KEY for one in CHUNKS)


@settings(max_examples=200, deadline=None)
@given(data=damaged(EXTRA.numpy().tobytes()))
def test_damaged_extras(data):
    try:
        extra = parse_extra(tensor_of(data), "sketch", 1, key=KEY)
    except ChunkError:
        return
    assert torch.equal(extra.raw, EXTRA)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes(data):
    for parse in (parse_header, header_bytes):
        try:
            parse(data)
        except ChunkError:
            continue
        assert parse is header_bytes, "nobody guesses a checksum"


@settings(max_examples=200, deadline=None)
@given(document=JSON)
def test_any_json(document):
    import json

    text = json.dumps(document).encode()
    text += b" " * (-(8 + len(text)) % 64)
    raw = len(text).to_bytes(8, "little") + text
    for parse in (parse_header, lambda raw: parse_extra(tensor_of(raw), "sketch", 1, key=KEY)):
        try:
            parse(raw)
        except ChunkError:
            continue
        raise AssertionError(document)


@settings(max_examples=60, deadline=None)
@given(
    codec=st.sampled_from(sorted(CODECS)),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    layers=st.integers(1, 3),
    tokens=st.integers(1, 140),
    fingerprint=TEXT,
    number=st.integers(0, 9),
)
def test_what_is_written_is_read(codec, dtype, layers, tokens, fingerprint, number):
    spec = make_spec(codec, dtype, layers=layers, tokens=tokens, fingerprint=fingerprint)
    try:
        chunk = make_chunk(spec).under(make_key(number))
    except ChunkSpecError:  # a codec that has no such dtype
        return
    found = load(chunk_file(chunk))
    assert found.spec == spec and found.header.key == make_key(number)
    assert same_chunk(found, chunk)
