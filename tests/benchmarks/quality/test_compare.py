"""Paired comparisons: by hand, against every sign choice, under the null and with an effect."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from benchmarks.quality.compare import EXACT, holm, macro, mcnemar, paired, sign_flip


def enumerated(tasks: list[str], differences: list[float]) -> float:
    """p over all sign choices, the average written out."""

    def average(values: list[float]) -> float:
        means = []
        for task in dict.fromkeys(tasks):
            own = [v for v, t in zip(values, tasks, strict=True) if t == task]
            means.append(sum(own) / len(own))
        return sum(means) / len(means)

    seen = abs(average(differences)) - 1e-12
    choices = list(product((1, -1), repeat=len(tasks)))
    flipped = ([s * d for s, d in zip(signs, differences, strict=True)] for signs in choices)
    return sum(abs(average(values)) >= seen for values in flipped) / len(choices)


# -- macro average --------------------------------------------------------------------------------


def test_every_task_counts_the_same() -> None:
    estimate = macro(["a", "b", "a", "a"], [1.0, 0.5, 0.0, 0.5])
    assert estimate.mean == pytest.approx(0.5)
    # Task b is always 0.5, task a between 0 and 1.
    assert 0.25 <= estimate.low < 0.5 < estimate.high <= 0.75


def test_equal_values_are_a_point_and_none_is_nan() -> None:
    estimate = macro(["a", "a", "b"], [0.2, 0.2, 0.6])
    assert (estimate.low, estimate.high) == pytest.approx((0.4, 0.4))
    assert estimate.mean == pytest.approx(0.4)
    assert math.isnan(macro([], []).mean)


def test_tasks_are_resampled_one_by_one() -> None:
    """Drawn alike, the tasks would cancel out in every resample."""
    values = list(np.random.default_rng(0).normal(size=30))
    estimate = macro(["a"] * 30 + ["b"] * 30, values + [-v for v in values])
    assert estimate.mean == pytest.approx(0)
    assert estimate.low < -0.05 < 0.05 < estimate.high


def test_the_interval_is_as_wide_as_the_standard_error_says() -> None:
    source = np.random.default_rng(1)
    a, b = source.normal(size=400), source.normal(scale=3, size=100)
    estimate = macro(["a"] * 400 + ["b"] * 100, [*a, *b])
    error = math.sqrt(a.var() / 400 + b.var() / 100) / 2
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * error, rel=0.08)


# -- sign flips -----------------------------------------------------------------------------------


def test_sign_flips_by_hand() -> None:
    # +++ and --- of 8 choices.
    assert sign_flip(["a"] * 3, [1, 1, 1]) == 2 / 8
    # Samples that do not differ are no evidence.
    assert sign_flip(["a"] * 5, [1, 0, 1, 0, 1]) == 2 / 8
    # D = 1/2 + (1 + 1 - 1) / 6 = 2/3; with a's sign kept, 4 of 8 choices reach it, and as many do
    # with it changed.
    assert sign_flip(["a", "b", "b", "b"], [1, 1, 1, -1]) == 1 / 2
    assert sign_flip(["a", "b"], [0, 0]) == 1
    assert sign_flip([], []) == 1


@pytest.mark.parametrize("seed", range(6))
def test_few_samples_are_enumerated(seed: int) -> None:
    source = np.random.default_rng(seed)
    tasks = [str(t) for t in source.choice(["a", "b", "c"], 9)]
    # Of few values, so that many choices tie.
    differences = [float(d) for d in source.choice([-1, -0.3, 0, 0.1, 0.2, 1], 9)]
    assert sign_flip(tasks, differences) == enumerated(tasks, differences)


def test_more_samples_are_drawn() -> None:
    source = np.random.default_rng(3)
    tasks = ["a"] * 10 + ["b"] * (EXACT - 9)
    differences = list(source.normal(0.3, 1, size=EXACT + 1))
    exact = enumerated(tasks, differences)
    assert 0.05 < exact < 0.95
    first = sign_flip(tasks, differences, seed=1)
    assert first == sign_flip(tasks, differences, seed=1)
    assert first != sign_flip(tasks, differences, seed=2)
    # Three standard errors of 10,000 draws are at most 0.015.
    assert first == pytest.approx(exact, abs=0.015)


def test_p_is_uniform_without_an_effect() -> None:
    source = np.random.default_rng(7)
    tasks = ["a"] * 30 + ["b"] * 8 + ["c"] * 5
    spread = np.array([1.0] * 30 + [3.0] * 8 + [0.2] * 5)
    runs = 300
    ps = np.sort(
        [sign_flip(tasks, list(source.normal(size=43) * spread), draws=400) for _ in range(runs)]
    )
    # Kolmogorov-Smirnov at 1 %; p itself goes in steps of 1 / 401.
    distance = np.abs(ps - (np.arange(runs) + 0.5) / runs).max()
    assert distance < 1.63 / math.sqrt(runs) + 1 / 401
    assert (ps <= 0.05).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_clear_effect_is_found_and_its_reverse_too() -> None:
    source = np.random.default_rng(5)
    tasks = ["a"] * 40 + ["b"] * 20
    ours = list(source.uniform(0.4, 1.0, size=60))
    theirs = list(source.uniform(0.0, 0.6, size=60))
    better, worse = paired(tasks, ours, theirs), paired(tasks, theirs, ours)
    assert better.p == pytest.approx(1 / 10_001)
    assert better.difference.low > 0
    assert worse.p == better.p
    assert worse.difference.mean == pytest.approx(-better.difference.mean)
    assert (better.won, better.lost) == (worse.lost, worse.won)
    assert better.mcnemar is None


# -- pairs ----------------------------------------------------------------------------------------


def test_pairs_of_right_and_wrong() -> None:
    ours, theirs = [1, 1, 1, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1, 0]
    found = paired(["a"] * 7, ours, theirs)
    assert (found.won, found.lost, found.tied) == (4, 1, 2)
    assert found.difference.mean == pytest.approx(3 / 7)
    # 2 (1 + 5) / 32; with one task, sign flips of ±1 are the same test.
    assert found.mcnemar == found.p == 12 / 32


def test_mixed_tasks_do_not_matter() -> None:
    source = np.random.default_rng(2)
    ours, theirs = list(source.uniform(size=40)), list(source.uniform(size=40))
    mixed = [i for pair in zip(range(20), range(20, 40), strict=True) for i in pair]
    tasks = ["b"] * 20 + ["a"] * 20
    apart = paired(tasks, ours, theirs, seed=3)
    assert apart == paired(
        [tasks[i] for i in mixed], [ours[i] for i in mixed], [theirs[i] for i in mixed], seed=3
    )
    assert apart.difference != paired(tasks, ours, theirs, seed=4).difference


def test_samples_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired(["a", "a"], [1.0, 0.0], [1.0])
    with pytest.raises(ValueError, match="longer"):
        paired(["a"], [1.0, 0.0], [1.0, 1.0])


def test_mcnemar_by_hand() -> None:
    assert mcnemar(5, 1) == mcnemar(1, 5) == 2 * (1 + 6) / 64
    assert mcnemar(3, 3) == 1
    assert mcnemar(0, 0) == 1
    assert mcnemar(0, 10) == 2 / 1024


# -- many comparisons -----------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # 3 · 0.01; 2 · 0.03; 0.04, but not less than the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
