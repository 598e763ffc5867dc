"""The Triton kernel that places stored KV, against decoding, rotating and copying: the same to the
bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from kvstitch.kvstore import ChunkSpec, EncodedChunk, ReadOutcome, encode_chunk
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading.chunk_stream import ChunkStream
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import kv_placement_gpu
from kvstitch_gpu.gpu_kernels import GpuPlacer
from kvstitch_gpu.kv_placement_gpu import Target
from kvstitch_gpu.transfers import Transfers
from tests.service.worker.tiny import StoredSegment
from tests_gpu.kernels.interpreter import needs_gpu

CASES = [(1, 1, 32), (70, 2, 64), (33, 3, 96), (65, 1, 128), (40, 2, 80)]
"""Tokens, KV heads, head dim."""
DTYPES = {"cpu": (torch.float16, torch.float32), "cuda": (torch.float16, torch.bfloat16)}


def chunk_of(
    codec: str, tokens: int, heads: int, d: int, dtype: torch.dtype, layers: int = 2
) -> EncodedChunk:
    """Layers whose tokens and channels differ in size."""
    random = torch.Generator().manual_seed(tokens + d)
    name = str(dtype).removeprefix("torch.")
    spec = ChunkSpec("model", codec, name, layers, heads, d, tokens)
    sizes = torch.rand(tokens, 1, 1, generator=random) * 4
    k, v = (
        [(torch.randn(spec.shape, generator=random) * sizes).to(dtype) for _ in range(layers)]
        for _ in "kv"
    )
    return encode_chunk(spec, k, v)


def compare(device: str) -> None:
    """Raises AssertionError where kernel and torch differ, or more is written than asked for."""
    for codec, case, dtype in product(kv_placement_gpu.CODECS, CASES, DTYPES[device]):
        tokens, heads, d = case
        chunk = chunk_of(codec, tokens, heads, d, dtype)
        table = RotaryTable(10000.0 ** -(torch.arange(0, d, 2, device=device) / d), 1.25, 500)
        order = torch.randperm(500, generator=torch.Generator().manual_seed(d))
        positions = order[:tokens].to(device)
        k, v = (x.to(device) for x in chunk.layer(1))
        cache = torch.zeros(2, heads, tokens + 9, d, dtype=dtype, device=device)
        k_out, v_out = cache[:, :, 4 : 4 + tokens]
        transfers = Transfers(
            [chunk], [slice(0, tokens)], shape=(heads, d), dtype=dtype, layers=2,
            device=torch.device(device),
        )  # fmt: skip
        staged = transfers.group(1)
        kv_placement_gpu.place(
            staged.buffer, staged.placement, Target.of_layer(k_out, v_out), positions=positions,
            cos=table.cos, sin=table.sin,
        )  # fmt: skip
        transfers.finish()
        assert k_out.transpose(0, 1).equal(table.at(positions)(k)), (codec, case, dtype, "k")
        assert v_out.transpose(0, 1).equal(v), (codec, case, dtype, "v")
        assert not cache[:, :, :4].any() and not cache[:, :, 4 + tokens :].any()


def through_place(device: str) -> None:
    """Raises AssertionError where `place` does not use the kernel, or the cache is another then."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    sizes = [7, 70, 5, 33, 20]
    codecs = ["raw", "int8", "raw", "int4", "raw"]
    chunks = [chunk_of(codec, n, 2, 32, dtype) for codec, n in zip(codecs, sizes, strict=True)]
    stream = ChunkStream(Address("", chunks[1].spec, (), ()), None)
    stream.whole(ReadOutcome(chunks[1], "memory", 0, 0.0))
    strided = StoredSegment(*([x.repeat(1, 2, 1)[:, :2]] * 2 for x in chunks[4].layer(1)))
    cached: list[Any] = [chunks[0], stream, None, chunks[3], strided]
    ids = [[0] * n for n in sizes]
    cold = [stored is None for stored in cached]
    layout = PromptLayout.of(ids[0], ids[1:], [0, 0], uncached=cold, device=torch.device(device))
    frequencies = 10000.0 ** -(torch.arange(0, 32, 2, device=device) / 32)
    ropes = [RotaryTable(frequencies, 1.0, 500)] * 2
    decoder: Any = SimpleNamespace(ropes=ropes, layers=2)

    def placed(by_kernel: bool) -> torch.Tensor:
        cache = torch.zeros(2, 2, layout.tokens + 3, 32, dtype=dtype, device=device)
        with (
            patch.object(kv_placement_gpu, "supports", lambda _: by_kernel),
            patch.object(kv_placement_gpu, "place", wraps=kv_placement_gpu.place) as used,
        ):
            kv = SimpleNamespace(prompt_layer=lambda layer, n: tuple(cache[:, :, :n]))
            with GpuPlacer(decoder, layout, cached, layout.all_rows + 11, kv) as placement:
                placement.place(1)
        assert used.call_count == by_kernel
        if by_kernel:
            (call,) = used.call_args_list
            assert [s.scaled for s in call.args[1].segments] == [False, True, False, False]
        return cache

    assert placed(by_kernel=True).equal(placed(by_kernel=False))


def by_groups(device: str) -> None:
    """Raises AssertionError where layers that are placed together are not those placed alone."""
    dtype, layers, d = torch.bfloat16 if device == "cuda" else torch.float16, 9, 32
    chunks = [chunk_of(codec, 40, 2, d, dtype, layers) for codec in ("raw", "int8", "int4")]
    ids = [[0] * 40] * 3
    layout = PromptLayout.of(
        ids[0], ids[1:], [0, 0], uncached=[False] * 3, device=torch.device(device)
    )
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    ropes = [RotaryTable(frequencies, scaling, 500) for scaling in (1.0, 1.5)]
    # The last layers of the second group are rotated otherwise than its first.
    decoder: Any = SimpleNamespace(ropes=[ropes[i > 5] for i in range(layers)], layers=layers)

    def placed(by_kernel: bool) -> tuple[list[torch.Tensor], list[int]]:
        pool = KVPool(layers, 2, d, 300, dtype=dtype, device=torch.device(device))
        others, sequence = pool.reserve(20), pool.reserve(layout.tokens + 3)
        assert others is not None and sequence is not None
        with (
            patch.object(kv_placement_gpu, "supports", lambda _: by_kernel),
            patch.object(kv_placement_gpu, "place", wraps=kv_placement_gpu.place) as used,
            GpuPlacer(decoder, layout, chunks, layout.all_rows + 11, sequence) as placer,
        ):
            for layer in range(layers):
                placer.place(layer)
        return [pool.all_k, pool.all_v], [call.args[3] for call in used.call_args_list]

    ours, together = placed(by_kernel=True)
    theirs, _ = placed(by_kernel=False)
    assert together == [1, 5, 2, 1]  # the second group in two parts, and then what is left
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


CHECKS = [compare, through_place, by_groups]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: Callable[[str], None]) -> None:
    assert kv_placement_gpu.supports(torch.zeros(2, 5, 64, dtype=torch.bfloat16, device="cuda"))
    check("cuda")
