"""Paired comparisons: by hand, against every sign choice, under the null and with an effect."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from benchmarks.quality.compare import EXACT, holm, paired, sign_flip


def enumerated(differences: list[float]) -> float:
    """p over all sign choices, the mean written out."""
    seen = abs(sum(differences)) - 1e-12
    choices = list(product((1, -1), repeat=len(differences)))
    flipped = ([s * d for s, d in zip(signs, differences, strict=True)] for signs in choices)
    return sum(abs(sum(values)) >= seen for values in flipped) / len(choices)


def test_sign_flips_by_hand() -> None:
    assert sign_flip([1, 1, 1]) == 2 / 8  # +++ and --- of 8 choices
    assert sign_flip([1, 0, 1, 0, 1]) == 2 / 8  # what does not differ is no evidence
    assert sign_flip([0, 0]) == 1
    assert sign_flip([]) == 1


@pytest.mark.parametrize("seed", range(6))
def test_few_samples_are_enumerated(seed: int) -> None:
    source = np.random.default_rng(seed)
    # Of few values, so that many choices tie.
    differences = [float(d) for d in source.choice([-1, -0.3, 0, 0.1, 0.2, 1], 9)]
    assert sign_flip(differences) == enumerated(differences)


def test_more_samples_are_drawn() -> None:
    differences = list(np.random.default_rng(3).normal(0.3, 1, size=EXACT + 1))
    exact = enumerated(differences)
    assert 0.05 < exact < 0.95
    first = sign_flip(differences, seed=1)
    assert first == sign_flip(differences, seed=1)
    assert first != sign_flip(differences, seed=2)
    # Three standard errors of 10,000 draws are at most 0.015.
    assert first == pytest.approx(exact, abs=0.015)


def test_p_is_uniform_without_an_effect() -> None:
    source = np.random.default_rng(7)
    runs = 300
    ps = np.sort([sign_flip(list(source.normal(size=43)), draws=400) for _ in range(runs)])
    # Kolmogorov-Smirnov at 1 %; p itself goes in steps of 1 / 401.
    distance = np.abs(ps - (np.arange(runs) + 0.5) / runs).max()
    assert distance < 1.63 / math.sqrt(runs) + 1 / 401
    assert (ps <= 0.05).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_clear_effect_is_found_and_its_reverse_too() -> None:
    source = np.random.default_rng(5)
    ours = list(source.uniform(0.4, 1.0, size=60))
    theirs = list(source.uniform(0.0, 0.6, size=60))
    better, worse = paired(ours, theirs), paired(theirs, ours)
    assert better.p == worse.p == pytest.approx(1 / 10_001)
    assert better.difference.low > 0
    assert worse.difference.mean == pytest.approx(-better.difference.mean)


def test_samples_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 0.0], [1.0])


def test_holm_by_hand() -> None:
    # 3 · 0.01; 2 · 0.03; 0.04, but not less than the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
