from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load as safetensors_load

from kvstitch.kvstore import ChunkCorrupt, ChunkSpec, ChunkSpecError, EncodedChunk, encode_chunk
from kvstitch.kvstore.format.chunk_header import parse_header
from kvstitch.kvstore.format.codecs import CODECS, codec
from kvstitch.kvstore.format.tensor_layout import ROLES
from tests.kvstore.chunks import (
    chunk_file,
    encoded,
    make_chunk,
    make_spec,
    make_tensors,
    tensors_of,
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("codec", CODECS)
def test_safetensors_reads_it(tmp_path, codec, dtype):
    spec = make_spec(codec, dtype)
    chunk = make_chunk(spec)
    path = tmp_path / "chunk.safetensors"
    path.write_bytes(chunk_file(chunk))
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        metadata = file.metadata()
        stored = file.get_tensor("v.2")
    assert names == set(tensors_of(chunk.header))
    assert metadata["fingerprint"] == "model-a" and metadata["codec"] == codec
    assert metadata["blocks.k.0"].startswith("xxh3_64:")
    start, end = (tensors_of(chunk.header)["v.2"].start, tensors_of(chunk.header)["v.2"].end)
    assert torch.equal(stored.view(torch.uint8).flatten(), chunk.data[start:end])
    assert set(safetensors_load(chunk_file(chunk))) == names


@pytest.mark.parametrize("tokens", [1, 63, 64, 65])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_raw_round_trip_is_exact_and_copies_nothing(dtype, tokens):
    spec = make_spec("raw", dtype, tokens=tokens)
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    for layer in range(spec.layers):
        got_k, got_v = chunk.layer(layer)
        assert torch.equal(got_k, k[layer]) and torch.equal(got_v, v[layer])
        assert got_k.untyped_storage().data_ptr() == chunk.data.untyped_storage().data_ptr()


@pytest.mark.parametrize("codec_name", CODECS)
@pytest.mark.parametrize("offset", [0, 1])
def test_all_layers_at_once(codec_name, offset):
    """Only what is stored as it is used, and where it is aligned."""
    chunk = make_chunk(make_spec(codec_name))
    moved = torch.empty(len(chunk.data) + offset, dtype=torch.uint8)[offset:]
    chunk = EncodedChunk(chunk.header, moved.copy_(chunk.data))
    layers = chunk.raw_layers()
    if codec_name != "raw" or offset:
        assert layers is None
        return
    assert layers is not None and len(layers) == chunk.spec.layers
    for number, (k, v) in enumerate(layers):
        one_k, one_v = chunk.layer(number)
        assert k.equal(one_k) and v.equal(one_v) and k.data_ptr() == one_k.data_ptr()


@pytest.mark.parametrize("codec_name", CODECS)
def test_a_layer_as_it_is_stored(codec_name):
    """The encoded tensors are views where aligned."""
    spec = make_spec(codec_name)
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    for role, expected, stored in zip(ROLES, (k[2], v[2]), encoded(chunk, 2), strict=True):
        for part, whole in zip(codec(codec_name).encode(role, expected), stored, strict=True):
            assert part.dtype == whole.dtype and torch.equal(part, whole)
        assert stored[0].untyped_storage().data_ptr() == chunk.data.untyped_storage().data_ptr()


def test_strided_input():
    spec = make_spec()
    k, v = make_tensors(spec)
    strided = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in k]
    assert not strided[0].is_contiguous()
    assert torch.equal(encode_chunk(spec, strided, v).data, encode_chunk(spec, k, v).data)


def test_the_chunk_does_not_alias_its_input():
    spec = make_spec()
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    k[0].zero_()
    chunk.verify()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CODECS)
def test_what_lies_where_its_dtype_is_not_aligned_is_stored(name, dtype):
    """Three KV heads and an odd number of tokens, as SmolLM2 has them."""
    spec = ChunkSpec("f", name, dtype, layers=3, kv_heads=3, head_dim=64, tokens=69)
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    for layer in range(spec.layers):
        for role, given, found in zip(ROLES, (k, v), chunk.layer(layer), strict=True):
            stored = codec(name).encode(role, given[layer])
            assert torch.equal(found, codec(name).decode(role, stored, spec))


def test_odd_sizes_still_decode():
    """One layer of int8 with an odd number of bytes per tensor keeps scales aligned."""
    spec = ChunkSpec("f", "int8", "float32", layers=2, kv_heads=1, head_dim=3, tokens=5)
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    chunk.verify()
    assert torch.allclose(chunk.layer(1)[1], v[1], atol=0.05)
    moved = chunk.layer(1, device="cpu")
    assert torch.equal(moved[0], chunk.layer(1)[0])


def test_verify_finds_a_changed_byte():
    chunk = make_chunk()
    chunk.data[chunk.header.layer_range(1)[0]] ^= 1
    with pytest.raises(ChunkCorrupt, match=r"layer 1 differs in blocks 0$"):
        chunk.verify()


@pytest.mark.parametrize("changed", ["layers", "shape", "dtype"])
def test_tensors_must_match_the_spec(changed):
    spec = make_spec()
    k, v = make_tensors(spec)
    if changed == "layers":
        v = v[:-1]
    elif changed == "shape":
        v[1] = v[1][:-1]
    else:
        v[1] = v[1].float()
    with pytest.raises(ChunkSpecError, match="spec"):
        encode_chunk(spec, k, v)


@pytest.mark.parametrize(
    "fields", [{"dtype": "int8"}, {"tokens": 0}, {"layers": 0}, {"layers": 513}]
)
def test_impossible_specs(fields):
    with pytest.raises(ChunkSpecError):
        make_spec(**fields)


def test_unknown_codec():
    spec = make_spec("zip")
    with pytest.raises(ChunkSpecError, match="unknown codec 'zip'"):
        encode_chunk(spec, *make_tensors(spec))


@pytest.mark.parametrize("codec_name", CODECS)
def test_values_that_are_the_keys_are_stored_once(codec_name):
    """Half the bytes; what is read is k twice, whole, by blocks and all layers at once; the header
    of every other chunk stays as it was."""
    plain = make_spec(codec_name, tokens=130)
    once = replace(plain, values_are_keys=True)
    k, _ = make_tensors(plain)
    chunk, both = encode_chunk(once, k, k), encode_chunk(plain, k, k)
    assert chunk.header.nbytes < both.header.nbytes
    assert "v.0" not in tensors_of(chunk.header)
    parsed = parse_header(memoryview(chunk_file(chunk)))
    assert parsed.spec == once and parse_header(memoryview(chunk_file(both))).spec == plain
    EncodedChunk(parsed, chunk.data).verify()
    expected = both.layer(2)[0]
    assert all(torch.equal(x, expected) for x in chunk.layer(2))
    if codec_name == "raw":
        assert 2 * chunk.header.nbytes == both.header.nbytes
        layers = chunk.raw_layers()
        assert layers is not None and all(torch.equal(x, k[1]) for x in layers[1])
