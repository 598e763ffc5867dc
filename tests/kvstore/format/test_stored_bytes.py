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
    ("int2", "bfloat16"): "f3f4b85c98338e4779c56efb402b52b0",
    ("int2", "float16"): "9f759cc68e4d1be260c4e9ac6c4b42c1",
    ("int2", "float32"): "f5552b993dd8d05f7123cb06362f8228",
    ("int4", "bfloat16"): "8437eb5f8d2c6a1838c706c028d5f812",
    ("int4", "float16"): "84adf53178fa2b5fcf619e06d9c0427d",
    ("int4", "float32"): "da32e04fae66da4fb2cd04ed6313f3dc",
    ("int8", "bfloat16"): "e3e5bad28cbcc198b1375e6e41596bbd",
    ("int8", "float16"): "ab088caf0f48ed80e70c5f14cae151c5",
    ("int8", "float32"): "85e6dff50346b093d0dc48244d4ac468",
    ("k8v4", "bfloat16"): "c5bdabf5a99d86a9fe1fe371785ab40b",
    ("k8v4", "float16"): "fe321c69639e35b220a90e2f3d9cc7a7",
    ("k8v4", "float32"): "65ce6c3a21f3312aa4b7783750dc6cd4",
    ("k8v8", "bfloat16"): "07fb65e58033536c0fc570b01bd5208e",
    ("k8v8", "float16"): "7526643db9671f22d784d81a900e05ea",
    ("k8v8", "float32"): "5e541ef438fb5c19be0c1326711eeb86",
    ("raw", "bfloat16"): "e60ae0116ebe2e087889e94ec9782e7d",
    ("raw", "float16"): "b0e16d66303b6080a22225e056e8e581",
    ("raw", "float32"): "0c585797c415dac91277fb91b2b69891",
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
