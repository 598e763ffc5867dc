"""The kernel that decodes what is stored in 8 bits, against the codecs: the same to the bit."""

from __future__ import annotations

import pytest
import torch

from kvstitch.kvstore import EncodedChunk, encode_chunk
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.service.worker.forward.kv_placement import opened
from kvstitch.service.worker.kernels.cpu import native
from kvstitch.service.worker.kernels.cpu.stored_layers import DecodedLayers

LAYERS = 3


def chunk(
    codec: str, tokens: int, heads: int = 2, d: int = 64, dtype: str = "bfloat16"
) -> EncodedChunk:
    random = torch.Generator().manual_seed(tokens)
    spec = ChunkSpec("f" * 16, codec, dtype, LAYERS, heads, d, tokens)
    kv = torch.randn(2, LAYERS, *spec.shape, generator=random) * 9
    kv[0, 1, :, :, 3] = 40.0  # a channel that is the same for all tokens
    kv[1, 2, 0] = 0.0
    k, v = kv.to(spec.torch_dtype)
    return encode_chunk(spec, list(k), list(v))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("codec", ["k8v8", "int8"])
@pytest.mark.parametrize(
    "tokens, heads, d", [(1, 1, 32), (63, 2, 64), (64, 1, 128), (65, 3, 64), (200, 2, 80)]
)
def test_as_the_codec_to_the_bit(
    codec: str, tokens: int, heads: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of keys of 64 tokens, the last one short; every layer, in any order, by the kernel."""
    stored = chunk(codec, tokens, heads, d)
    expected = [stored.layer(layer) for layer in range(LAYERS)]
    found = opened(stored)
    assert isinstance(found, DecodedLayers)
    monkeypatch.setattr(EncodedChunk, "layer", None)
    for layer in (2, 0, 1, 0):
        k, v = found.layer(layer)
        assert k.equal(expected[layer][0]) and v.equal(expected[layer][1])


@pytest.mark.parametrize("codec, dtype", [("int4", "bfloat16"), ("k8v8", "float32")])
def test_what_the_kernel_does_not_know_is_decoded_once(codec: str, dtype: str) -> None:
    stored = chunk(codec, 70, dtype=dtype)
    found = DecodedLayers(stored)
    k, v = found.layer(1)
    assert k.equal(stored.layer(1)[0]) and v.equal(stored.layer(1)[1])
    assert found.layer(1)[0] is k


def test_without_the_kernel_the_codec_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = chunk("k8v8", 70)
    monkeypatch.setattr(native, "module", lambda: None)
    assert DecodedLayers(stored).layer(0)[0].equal(stored.layer(0)[0])
