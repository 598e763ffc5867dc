"""Tests of stable_topk: the k largest, the lower index among equals, ascending."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.worker.methods.scores import stable_topk


def brute_force(scores: list[float], k: int) -> list[int]:
    best = sorted(range(len(scores)), key=lambda t: (-scores[t], t))
    return sorted(best[: max(0, k)])


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_is_brute_force(levels: int) -> None:
    """Random scores of few distinct values (max-pooling makes such ties all the time)."""
    source = torch.Generator().manual_seed(levels)
    for n in (0, 1, 2, 17, 400):
        scores = torch.randint(0, levels, (n,), generator=source).float()
        for k in (-1, 0, 1, n // 2, n - 1, n, n + 5):
            assert stable_topk(scores, k).tolist() == brute_force(scores.tolist(), k)


def test_all_equal_takes_the_first() -> None:
    assert stable_topk(torch.zeros(1000), 3).tolist() == [0, 1, 2]


def test_infinities() -> None:
    scores = torch.tensor([float("-inf"), 1.0, float("inf"), float("-inf")])
    assert stable_topk(scores, 3).tolist() == [0, 1, 2]


def test_every_row_by_itself() -> None:
    scores = torch.randint(0, 4, (3, 2, 50), generator=torch.Generator().manual_seed(0)).float()
    top = stable_topk(scores, 7)
    assert top.shape == (3, 2, 7)
    for i in range(3):
        for j in range(2):
            assert top[i, j].tolist() == brute_force(scores[i, j].tolist(), 7)
