"""Encoding from a GPU and decoding on a GPU gives the same as on the CPU."""

import pytest
import torch

from kvstitch.kvstore import SsdTier, encode_chunk
from kvstitch.kvstore.format.codecs import CODECS
from tests.kvstore.chunks import make_key, make_spec, make_tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", CODECS)
def test_same_bytes_and_same_tensors(name, tmp_path):
    spec = make_spec(name)
    k, v = make_tensors(spec)
    on_cpu = encode_chunk(spec, k, v)
    on_gpu = encode_chunk(spec, [t.cuda() for t in k], [t.cuda() for t in v], pin=True)
    assert on_gpu.data.is_pinned() and torch.equal(on_gpu.data, on_cpu.data)
    tier = SsdTier(tmp_path, 1 << 24, pin=True)
    tier.start()
    tier.put(make_key(), on_gpu)
    read = tier.read(make_key())
    tier.close()
    assert read is not None and read.data.is_pinned()
    for layer in range(spec.layers):
        for got, want in zip(read.layer(layer, device="cuda"), on_cpu.layer(layer), strict=True):
            assert got.is_cuda and torch.equal(got.cpu(), want)
