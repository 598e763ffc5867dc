from typing import cast

import pytest
import torch
from safetensors.torch import load as safetensors_load

from kvstitch.kvstore import ChunkCorrupt, ChunkRefused, ChunkSpecError
from kvstitch.kvstore.format.extra_tensors import FORMAT_VERSION, encode_extra, parse_extra
from kvstitch.kvstore.format.safetensors_header import StoredTensor, build_sealed
from tests.kvstore.chunks import make_key

KEY = make_key()
TENSORS = {
    "alpha.0": torch.rand(5),
    "mean.0": torch.randn(5, 2, 8).bfloat16(),
    "outliers.0": torch.empty(0, dtype=torch.int32),
    "rank": torch.arange(7),
    "flags": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5).half(),
}


def same(a, b):
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def test_round_trip():
    extra = encode_extra("sketch", 3, TENSORS, key=KEY)
    assert same(extra.tensors, TENSORS)
    parsed = parse_extra(extra.raw, "sketch", 3, key=KEY)
    assert same(parsed.tensors, TENSORS) and (parsed.name, parsed.version) == ("sketch", 3)
    assert parsed.nbytes == extra.nbytes == extra.raw.numel()
    views = parsed.tensors["mean.0"].untyped_storage().data_ptr()
    assert views == parsed.raw.untyped_storage().data_ptr(), "views, not copies"


def test_safetensors_reads_it():
    assert same(
        safetensors_load(encode_extra("sketch", 3, TENSORS, key=KEY).raw.numpy().tobytes()), TENSORS
    )


def test_strided_tensors_and_none_at_all():
    strided = torch.arange(12).view(3, 4).t()
    assert torch.equal(encode_extra("x", 1, {"t": strided}, key=KEY).tensors["t"], strided)
    assert parse_extra(encode_extra("x", 1, {}, key=KEY).raw, "x", 1, key=KEY).tensors == {}


def test_the_input_is_not_aliased():
    tensor = torch.ones(4)
    extra = encode_extra("x", 1, {"t": tensor}, key=KEY)
    tensor.zero_()
    assert parse_extra(extra.raw, "x", 1, key=KEY).tensors["t"].sum() == 4


def test_a_flip_of_any_byte_is_detected():
    raw = encode_extra("sketch", 1, TENSORS, key=KEY).raw
    for position in range(raw.numel()):
        raw[position] ^= 0x20
        with pytest.raises((ChunkCorrupt, ChunkRefused)):
            parse_extra(raw, "sketch", 1, key=KEY)
        raw[position] ^= 0x20
    parse_extra(raw, "sketch", 1, key=KEY)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_truncation_is_detected(keep):
    with pytest.raises(ChunkCorrupt):
        parse_extra(encode_extra("sketch", 1, TENSORS, key=KEY).raw[:keep], "sketch", 1, key=KEY)


@pytest.mark.parametrize(("name", "version"), [("sketch", 2), ("other", 1)])
def test_another_name_or_version_is_refused(name, version):
    with pytest.raises(ChunkRefused, match="'sketch' version '1'"):
        parse_extra(encode_extra("sketch", 1, TENSORS, key=KEY).raw, name, version, key=KEY)


def test_the_extra_of_another_chunk_is_refused():
    raw = encode_extra("sketch", 1, TENSORS, key=make_key(1)).raw
    with pytest.raises(ChunkRefused, match="another chunk"):
        parse_extra(raw, "sketch", 1, key=KEY)


def test_a_chunk_is_no_extra():
    from tests.kvstore.chunks import chunk_file, make_chunk

    raw = torch.frombuffer(bytearray(chunk_file(make_chunk())), dtype=torch.uint8)
    with pytest.raises(ChunkRefused):
        parse_extra(raw, "sketch", 1, key=KEY)


@pytest.mark.parametrize(
    "description",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "Q7", "shape": [1], "data_offsets": [0, 4]},
        {"shape": [1]},
        7,
    ],
)
def test_a_sealed_header_that_contradicts_itself(description):
    class Odd:
        name = "t"

        def description(self):
            return description

    good = encode_extra("x", 1, {"t": torch.ones(1)}, key=KEY)
    data = good.raw[-4:].numpy().tobytes()
    from kvstitch.kvstore.format.safetensors_header import checksum

    facts = {"format": "kvstitch-extra", "format_version": FORMAT_VERSION, "key": KEY}
    facts |= {"name": "x", "version": "1"}
    sealed = build_sealed(
        {**facts, "checksum": checksum(data)}, cast("list[StoredTensor]", [Odd()])
    )
    raw = sealed + data
    with pytest.raises(ChunkCorrupt, match="not described"):
        parse_extra(torch.frombuffer(bytearray(raw), dtype=torch.uint8), "x", 1, key=KEY)


def test_what_cannot_be_stored():
    with pytest.raises(ChunkSpecError, match="complex64"):
        encode_extra("x", 1, {"t": torch.ones(1, dtype=torch.complex64)}, key=KEY)
    with pytest.raises(ChunkSpecError, match="not a name"):
        encode_extra("../x", 1, {}, key=KEY)
