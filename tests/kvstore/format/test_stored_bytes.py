"""What is stored stays readable: the bytes of chunks, extra tensors and keys never change."""

import hashlib

import pytest
import torch

from kvstitch.kvstore import chunk_key, encode_chunk, parse_header
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.extra_tensors import encode_extra
from tests.kvstore.chunks import chunk_file, make_key, make_spec

KEY = "2b06c2a9ee3a4b46d0c4e8f1a5e2c917"


def tensors(spec, offset):
    """Values that follow from arithmetic alone, so that no random generator matters."""
    count = spec.tokens * spec.kv_heads * spec.head_dim
    numbers = torch.arange(count * spec.layers, dtype=torch.int64) + offset
    values = ((numbers * 2654435761) % 65521).double() / 65521 * 8 - 4
    return list(values.to(spec.torch_dtype).view(spec.layers, *spec.shape))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


STORED = {
    ("int2", "bfloat16"): "d48662dfab50f5b1db990a9c9d676d3e",
    ("int2", "float16"): "a9c4ead929d18631d270cf9687e5c91c",
    ("int2", "float32"): "1fb3ed16ca1a884cf00274409167131a",
    ("int4", "bfloat16"): "8daff588c6bc3f834edaa1b1d9e20e21",
    ("int4", "float16"): "dbbc74d542859735ac1cd331976cb389",
    ("int4", "float32"): "55e4872cfa0f3fe2ef656110a62432f6",
    ("int8", "bfloat16"): "7ca1ff6f2f2daf541960db415766f8e0",
    ("int8", "float16"): "c2eb889afa5ec8e6f8c296ee235b2cf3",
    ("int8", "float32"): "d10bf50e4451b4148d1a45cc95bff2c6",
    ("k8v4", "bfloat16"): "5b79f831b4773f405ce298eaeb172fba",
    ("k8v4", "float16"): "837f92c2c013bb0d508e51a27f8fff2a",
    ("k8v4", "float32"): "38f8cadeff0b38add810fbc4865ea77e",
    ("k8v8", "bfloat16"): "e92a452ce3a68828d37f1f46a04c681a",
    ("k8v8", "float16"): "7a35c7ba0c0261a3362250c07b92a5ca",
    ("k8v8", "float32"): "803e3db439bd00d9edfce7e8650962d0",
    ("raw", "bfloat16"): "cb36b1eb0d618dd074177f9f279be274",
    ("raw", "float16"): "a7e8854fb7d316c4df59a34604ebb851",
    ("raw", "float32"): "c920178125ee2a62c6f7b3c1cb9f15b6",
}
EXTRA = "c2e944b57648f1fb51bf6875e61feaf9"
KEYS = ("bef5d8d460b840ba9484db1e66129612", "6d58f8c89303b823505d30e65a6b55f3")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_has_the_bytes_it_always_had(codec, dtype):
    spec = make_spec(codec, dtype, tokens=150)
    chunk = encode_chunk(spec, tensors(spec, 0), tensors(spec, 7)).under(KEY)
    assert digest(chunk_file(chunk)) == STORED[codec, dtype]
    assert parse_header(chunk.header_bytes).key == KEY


def test_every_codec_is_compared():
    assert {codec for codec, _ in STORED} == set(CODECS)


def test_extra_tensors_have_the_bytes_they_always_had():
    extra = encode_extra(
        "sketch", 3, {"mean": torch.arange(9.0), "rows": torch.arange(5).int()}, key=KEY
    )
    assert digest(extra.raw.numpy().tobytes()) == EXTRA


def test_keys_are_what_they_always_were():
    keyed = chunk_key(
        fingerprint="model-a",
        dtype="bfloat16",
        codec="int8",
        prefix_mode="bos",
        prefix_ids=[1],
        chunk_ids=range(100),
        tenant_secret=b"secret",
    )
    assert (make_key(), keyed) == KEYS
