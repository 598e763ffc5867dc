"""Sizes on paper: they are the sizes of real chunks."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sizing import CODECS, SMALL, share_of_reads
from kvstore import encode_chunk
from kvstore.format.chunk_identity import ChunkSpec


@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_on_paper_is_as_large_as_a_real_one(codec: str) -> None:
    spec = ChunkSpec("0" * 64, codec, "bfloat16", SMALL.layers, SMALL.kv_heads, SMALL.head_dim, 100)
    k, v = (
        [torch.randn(spec.shape).to(spec.torch_dtype) for _ in range(spec.layers)] for _ in "kv"
    )
    assert encode_chunk(spec, k, v).nbytes == SMALL.chunk_bytes(codec, tokens=100)


def test_reads_follow_rank() -> None:
    """Of 1000 chunks: summed one by one, the harmonic series."""
    exact = sum(1 / i for i in range(1, 11)) / sum(1 / i for i in range(1, 1001))
    assert share_of_reads(10, 1000) == pytest.approx(exact, rel=2e-3)
    assert share_of_reads(0, 1000) == 0 and share_of_reads(5000, 1000) == 1
