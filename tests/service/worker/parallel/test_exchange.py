"""Three processes exchange tensors of every dtype that KV can have."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from service.worker.parallel.exchange import Exchange

RANKS, HEADS = 3, 6


def exchanged(rank: int, meeting: Path) -> None:
    exchange = Exchange(rank, RANKS)
    exchange.open(meeting, gpus=False)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        random = torch.Generator().manual_seed(0)
        whole = torch.randn(2, 5, HEADS, 4, generator=random).to(dtype)
        parts = torch.randn(RANKS, 7, 9, generator=random).to(dtype)
        own = torch.empty(2, 5, HEADS // RANKS, 4, dtype=dtype)
        exchange.heads_from_first(own, None if rank else whole)
        assert own.equal(whole[:, :, exchange.own(HEADS)])
        # Rounded once: in fp32 the order of three numbers changes less than half a unit of bf16.
        total, allowed = exchange.sum(parts[rank].clone()), torch.finfo(dtype).eps
        torch.testing.assert_close(
            total.double(), parts.double().sum(0), rtol=0.51 * allowed + 2e-7, atol=1e-6
        )
        assert total.dtype == dtype
        assert exchange.all_heads(parts[rank]).equal(parts.flatten(0, 1))
        collected = exchange.to_first(parts[rank], 1)
        assert rank or collected.equal(torch.cat(list(parts), 1))
    assert exchange.from_first(0 if rank else 7) == 7
    assert int(exchange.largest(torch.tensor([rank]))) == RANKS - 1
    exchange.close()


def test_every_exchange_in_every_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    fork = multiprocessing.get_context("fork")
    meeting = tmp_path / "ranks"
    ranks = [
        fork.Process(target=exchanged, args=(rank, meeting), daemon=True) for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(240)
    assert [rank.exitcode for rank in ranks] == [0] * RANKS
