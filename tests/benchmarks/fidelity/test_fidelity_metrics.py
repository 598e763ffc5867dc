"""The fidelity figures against hand computations."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.fidelity.report.metrics import (
    depths,
    hit_rate,
    map_distance,
    relative_error,
)
from tuning.trial import agreement, divergence


def test_divergence_by_hand() -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔; whatever constant the logits carry."""
    full = torch.tensor([[0.0, 0.0], [7.0, 7.0]])
    other = torch.tensor([[1.0, 3.0], [0.25, 0.75]]).log() + torch.tensor([[5.0], [0.0]])
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(full, other).tolist() == pytest.approx([expected, expected])
    assert divergence(other, other).tolist() == [0.0, 0.0]
    # One full row against several others: the sequences of a batch.
    assert divergence(full, torch.stack([other, full])).shape == (2, 2)


def test_agreement() -> None:
    full = torch.tensor([[0.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    assert agreement(full, torch.tensor([[0.0, 3.0, 2.0], [1.0, 1.5, 0.0]])).tolist() == [1, 0]


def test_relative_error_over_some_rows() -> None:
    full = torch.zeros(2, 4, 1)
    full[0, 1], full[1, 2] = 3.0, 4.0  # norm 5 over rows 1 and 2
    other = full.clone()
    other[0, 1] += 1.0
    other[1, 3] += 100.0  # outside
    assert relative_error(full, other, slice(1, 3)) == pytest.approx(0.2)
    assert relative_error(full, other, slice(1, 1)) == 0.0


def test_map_distance_is_a_mean_over_heads_and_rows() -> None:
    full = torch.zeros(2, 1, 3)
    full[:, :, 0] = 1.0
    other = full.clone()
    other[1, 0] = torch.tensor([0.0, 1.0, 0.0])  # as far as two distributions can be
    assert map_distance(full, other) == pytest.approx(math.sqrt(2) / 2)


def test_hit_rate_by_hand() -> None:
    attention_scores = torch.tensor([9.0, 0.1, 0.5, 0.4, 0.3, 9.0])
    documents = slice(1, 5)
    assert hit_rate([2, 3], attention_scores, documents) == 1.0
    assert hit_rate([2, 4], attention_scores, documents) == 0.5
    assert hit_rate([1], attention_scores, documents) == 0.0
    assert hit_rate([1, 2, 3, 4], attention_scores, documents) == 1.0
    assert hit_rate([], attention_scores, documents) is None
    ties = torch.ones(6)
    assert hit_rate([1, 2], ties, documents) == 1.0  # the lower index wins


def test_depths_scale_the_papers() -> None:
    assert depths(32) == (4, 13, 22, 31)
    assert depths(12) == (1, 5, 8, 11)
    assert depths(2) == (0, 1)
    assert depths(1) == (0,)
