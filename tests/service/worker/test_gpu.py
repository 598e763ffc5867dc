"""The engine's arithmetic on a GPU against the same on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

from service.worker.forward.decode import decode_step
from service.worker.kv.pool import KVPool
from service.worker.model.adapters.base import DecoderAdapter, adapter_for
from service.worker.model.attention import attend_last, attend_rows
from tests.service.worker.forward.test_decode import Running
from tests.service.worker.tiny import Tiny, assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

SCALE = 0.125


@pytest.mark.parametrize("rows", ["scattered", "last", "all"])
def test_index_causal_attention(rows: str) -> None:
    random = torch.Generator().manual_seed(0)
    n = 300
    index = {
        "scattered": torch.randperm(n, generator=random)[:77].sort().values,
        "last": torch.arange(n - 20, n),
        "all": torch.arange(n),
    }[rows]
    q = torch.randn(len(index), 8, 64, generator=random)
    k, v = torch.randn(2, 2, n, 64, generator=random)
    here = attend_rows(q, k, v, index, SCALE)
    there = attend_rows(q.cuda(), k.cuda(), v.cuda(), index.cuda(), SCALE)
    assert_close("attention on the GPU", there.cpu(), here)


def test_attention_of_one_query() -> None:
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(8, 64, generator=random), *torch.randn(2, 2, 90, 64, generator=random)
    there = attend_last(q.cuda(), k.cuda(), v.cuda(), SCALE)
    assert_close("attention on the GPU", there.cpu(), attend_last(q, k, v, SCALE))


@pytest.mark.parametrize("ragged", [False, True])
def test_a_decode_step(any_family: Tiny, ragged: bool) -> None:
    on_cpu = any_family.adapter
    on_gpu = adapter_for(copy.deepcopy(on_cpu.model).cuda())
    there = decoded(on_gpu, ragged).cpu()
    assert_close("decoding on the GPU", there, decoded(on_cpu, ragged))


def decoded(adapter: DecoderAdapter, ragged: bool) -> torch.Tensor:
    lengths = (3, 40)
    pool = KVPool(
        adapter.layers, adapter.kv_heads, adapter.head_dim, sum(lengths) + 2,
        dtype=adapter.dtype, device=adapter.device,
    )  # fmt: skip
    running = []
    for length in lengths:
        kv = pool.reserve(length + 1)
        assert kv is not None
        random = torch.Generator().manual_seed(length)
        for layer in range(adapter.layers):
            for store in kv.prompt_layer(layer, length):
                store.copy_(torch.randn(store.shape, generator=random))
        kv.set_length(length)
        if ragged and length > 3:
            for layer in range(adapter.layers):
                heads = range(adapter.kv_heads)
                kv.keep(layer, [torch.arange(0, length, 1 + h) for h in heads], 1)
        running.append(Running(kv, length, [5]))
    return decode_step(adapter, running)
