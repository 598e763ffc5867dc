"""When a method is left and when it is returned to, whatever it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.worker.gate.method_trust import MethodTrust
from kvstitch.service.worker.gate.policy import (
    MAX_RECOVERY_FACTOR,
    Bounds,
    DriftMonitor,
    Observation,
    agreement_of,
    binomial_cdf,
    mean_kl,
    mean_lower_bound,
)
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion import question_scout, vanilla

GOOD, BAD = Observation(0.001, True), Observation(5.0, False)
observations = st.builds(
    Observation, st.floats(0, 20, allow_nan=False), st.booleans()
) | st.sampled_from([GOOD, BAD])
bounds = st.integers(1, 12).flatmap(
    lambda window: st.builds(
        Bounds,
        st.just(window),
        st.integers(1, window),
        st.floats(0, 1),
        st.floats(0.01, 5),
        st.integers(1, 8),
    )
)


def trip(drift: DriftMonitor) -> None:
    """Bad checks until it is one level up."""
    level = drift.level
    while drift.level == level:
        drift.observe(level, BAD)


def test_a_broken_method_trips_with_the_first_judgement() -> None:
    drift = DriftMonitor(Bounds(min_checks=8), top=1)
    whys = [drift.observe(0, BAD) for _ in range(8)]
    assert whys[:7] == [""] * 7
    assert "0 of 8 checks agreed" in whys[7]
    assert drift.level == drift.top == 1


def test_the_right_token_with_the_wrong_distribution_trips_too() -> None:
    drift = DriftMonitor(Bounds(min_checks=8, kl=0.5), top=1)
    whys = [drift.observe(0, Observation(2.0, True)) for _ in range(8)]
    assert "KL to full prefill was at least 2 nats" in whys[7]


def test_one_outlier_does_not_trip() -> None:
    """Mean KL 2.5 of 8 checks, by one of them: no confidence that it is above 0.5."""
    drift = DriftMonitor(Bounds(min_checks=8, kl=0.5), top=1)
    for seen in [Observation(20.0, False), *[GOOD] * 7]:
        assert drift.observe(0, seen) == ""


def test_a_method_as_good_as_asked_for_is_rarely_left() -> None:
    """The trip is a test of 99 % confidence: P(trip | exactly at the bound) < 1 % per judgement,
    and 2 of 8 is the most that is still believed to be bad luck's opposite."""
    for agreeing, trips in ((2, True), (3, False)):
        drift = DriftMonitor(Bounds(min_checks=8, agreement=0.75), top=1)
        outcomes = [True] * agreeing + [False] * (8 - agreeing)
        whys = [drift.observe(0, Observation(0.1, agrees)) for agrees in outcomes]
        assert bool(whys[-1]) is trips
        assert (binomial_cdf(agreeing, 8, 0.75) < 0.01) is trips


def test_old_checks_are_forgotten() -> None:
    """A method that was good for long and breaks is judged by its last checks."""
    drift = DriftMonitor(Bounds(window=8, min_checks=4), top=1)
    for _ in range(1000):
        assert drift.observe(0, GOOD) == ""
    needed = next(n for n in range(1, 9) if drift.observe(0, BAD))
    assert needed <= 8


def test_back_only_after_long_and_never_on_its_own_evidence() -> None:
    """Checks of the raised level do not bring the lower one back; good ones of the lower do."""
    drift = DriftMonitor(Bounds(min_checks=4, recovery=5), top=3)
    trip(drift)
    for _ in range(200):
        assert drift.observe(1, GOOD) == ""
    for _ in range(4):
        assert drift.observe(0, GOOD) == ""
    assert "100% of 5 checks agreed again" in drift.observe(0, GOOD)
    assert drift.level == 0


def test_half_way_back_it_says_why_it_was_left() -> None:
    few, more = question_scout.Method(ratio=0.1), question_scout.Method(ratio=0.5)
    steps: list[FusionMethod] = [few, more, vanilla.Method()]
    drift = DriftMonitor(Bounds(min_checks=4, recovery=3), top=2)
    trust = MethodTrust("question_scout", steps, drift)
    for level in (0, 1):
        while drift.level == level:
            trust.observe(level, BAD)
    left = trust.why
    assert trust.replaced and "0 of 4 checks agreed" in left
    for level, why in ((1, left), (0, "")):
        while drift.level == level + 1:
            trust.observe(level, GOOD)
        assert trust.why == why


def test_just_inside_the_bounds_does_not_bring_it_back() -> None:
    """Hysteresis: it has to be half-way better than what would make it leave."""
    bounds = Bounds(min_checks=4, agreement=0.75, kl=0.5, recovery=10)
    agreeing, near = DriftMonitor(bounds, top=1), DriftMonitor(bounds, top=1)
    trip(agreeing)
    trip(near)
    for _ in range(20):
        for agrees in (True, True, True, True, False):  # 80 %: above 75, below 87.5
            assert agreeing.observe(0, Observation(0.1, agrees)) == ""
            assert near.observe(0, Observation(0.3, True)) == ""  # below 0.5, above 0.25
    assert (agreeing.level, near.level) == (1, 1)


def test_every_trip_asks_for_more() -> None:
    drift = DriftMonitor(Bounds(min_checks=4, recovery=3), top=1)
    asked = []
    for _ in range(6):
        trip(drift)
        asked.append(drift.recovery_checks)
        for _ in range(drift.recovery_checks):
            drift.observe(0, GOOD)
        assert drift.level == 0
    assert asked == [3, 6, 12, 24, 3 * MAX_RECOVERY_FACTOR, 3 * MAX_RECOVERY_FACTOR]
    drift.reset()
    trip(drift)
    assert drift.recovery_checks == 3


def test_checks_that_come_late_count_nothing() -> None:
    drift = DriftMonitor(Bounds(min_checks=2), top=4)
    trip(drift)
    trip(drift)
    assert drift.level == 2
    for late in (0, 3, 4):
        for _ in range(100):
            assert drift.observe(late, BAD) == ""
    assert drift.level == 2 and not drift.checks_at_level and not drift.checks_below


@settings(deadline=None)
@given(bounds, st.integers(1, 4), st.lists(st.tuples(observations, st.booleans()), max_size=80))
def test_moves_are_earned(bounds: Bounds, top: int, told: list[tuple[Observation, bool]]) -> None:
    """Whatever is observed: one level at a time, never outside, up only after `min_checks` of this
    level that are worse than the bounds, down only after `needed` of the level below that are
    better than half-way."""
    drift = DriftMonitor(bounds, top)
    here: list[Observation] = []
    below: list[Observation] = []
    for seen, of_below in told:
        before, needed = drift.level, drift.recovery_checks
        level = before - 1 if of_below or before == top else before
        why = drift.observe(level, seen)
        if level == before and before < top:
            here.append(seen)
        elif level == before - 1 >= 0:
            below.append(seen)
        assert 0 <= drift.level <= top
        assert bool(why) == (drift.level != before)
        if drift.level > before:
            assert drift.level == before + 1
            last = here[-bounds.window :]
            assert len(last) >= bounds.min_checks
            assert agreement_of(last) < bounds.agreement or mean_kl(last) > bounds.kl
        if drift.level < before:
            assert drift.level == before - 1
            last = below[-needed:]
            assert len(last) == needed >= bounds.recovery
            assert agreement_of(last) >= (1 + bounds.agreement) / 2
            assert mean_kl(last) <= bounds.kl / 2
        if drift.level != before:
            here, below = [], []


@settings(deadline=None)
@given(bounds, st.integers(1, 3), st.integers(0, 60))
def test_perfect_checks_never_move(bounds: Bounds, top: int, count: int) -> None:
    drift = DriftMonitor(bounds, top)
    for _ in range(count):
        assert drift.observe(0, Observation(0.0, True)) == ""
    assert drift.trips == 0


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.75, 1.0])
def test_the_binomial_tail(chance: float) -> None:
    assert binomial_cdf(9, 9, chance) == pytest.approx(1.0)
    assert binomial_cdf(0, 9, chance) == pytest.approx((1 - chance) ** 9)
    tails = [binomial_cdf(k, 9, chance) for k in range(10)]
    assert tails == sorted(tails)


def test_the_least_mean() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    sd = math.sqrt(sum((v - 2.5) ** 2 for v in values) / 3)
    assert mean_lower_bound(values) == pytest.approx(2.5 - 2.326 * sd / 2)
    assert mean_lower_bound([7.0]) == 0.0
