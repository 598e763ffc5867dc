"""Sums over shared memory, by ranks that are threads here."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from service.worker.parallel.exchange import SLOT, SharedSum

RANKS, SUMS = 3, 200
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def parts(number: int) -> list[Tensor]:
    """What the ranks have to add in the sum of this number."""
    source = torch.Generator().manual_seed(number)
    dtype = DTYPES[number % len(DTYPES)]
    shape = (number % 5 + 1, 7)
    return [(100 * torch.randn(shape, generator=source)).to(dtype) for _ in range(RANKS)]


def test_every_rank_gets_the_same_sums(tmp_path: Path) -> None:
    """However unequally they come: each is late at times, by chance."""

    def run(rank: int) -> list[Tensor]:
        shared = SharedSum(tmp_path / "sums", rank, RANKS, patience_s=60)
        random, sums = Random(rank), []
        for number in range(SUMS):
            if random.random() < 0.02:
                time.sleep(0.01)
            sums.append(shared.sum(parts(number)[rank]))
        return sums

    with ThreadPoolExecutor(RANKS) as ranks:
        first, *others = ranks.map(run, range(RANKS))
    for number, total in enumerate(first):
        expected = torch.stack(parts(number))
        assert total.dtype == expected.dtype
        tolerance = 2**-8 * float(expected.abs().sum()) if total.dtype == torch.bfloat16 else 1e-3
        torch.testing.assert_close(total.double(), expected.double().sum(0), atol=tolerance, rtol=0)
        assert all(torch.equal(total, other[number]) for other in others)


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    alone = SharedSum(tmp_path / "sums", 0, 2, patience_s=0.05)
    with pytest.raises(TimeoutError, match="did not come"):
        alone.sum(torch.ones(3))


def test_what_does_not_fit_is_left_to_others(tmp_path: Path) -> None:
    shared = SharedSum(tmp_path / "sums", 0, 2, patience_s=1)
    assert shared.takes(torch.empty(SLOT, dtype=torch.uint8))
    assert not shared.takes(torch.empty(SLOT + 1, dtype=torch.uint8))
