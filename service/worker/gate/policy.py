"""Decides when a fusion method is no longer trusted, and when it is again.

    level 0            1 … top-1                top
    as asked for       its ratio raised         full prefill
        ──── worse than the bounds ──►    one level up, at once
        ◄─── better than half-way ────    one level down, after `recovery` checks of that level

Moving up takes evidence, not one bad check: with 99 % confidence the method agrees less often, or
differs by more, than the bounds allow. Moving down is never tried on answers: the level below is
run beside the answers, in spare time, and used again when it has been good for long. There is no
clock and no randomness here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

FALSE_ALARM_RATE = 0.01
"""Chance of moving up although the method is exactly as good as the bounds ask."""
_NORMAL_99 = 2.326
MAX_RECOVERY_FACTOR = 8
"""A method that fails again and again needs at most this many times `recovery` good checks."""


@dataclass(frozen=True)
class Observation:
    """One check: a next-token distribution compared with full prefill's."""

    kl: float
    agrees: bool


@dataclass(frozen=True)
class Bounds:
    """What is demanded of a method."""

    window: int = 32  # how many of the last checks count
    min_checks: int = 8  # nothing is decided with fewer
    agreement: float = 0.75  # smallest allowed share of checks that agree
    kl: float = 0.5  # largest allowed mean KL, in nats
    recovery: int = 32  # good checks of the level below before that level is used again


class DriftMonitor:
    """The checks of one method with its parameters, and the level they lead to. Not thread-safe."""

    def __init__(self, bounds: Bounds, top: int) -> None:
        assert top >= 1
        self._bounds = bounds
        self.top = top
        self.level = 0
        self.trips = 0
        self.checks_at_level: deque[Observation] = deque(maxlen=bounds.window)
        self.checks_below: deque[Observation] = deque()

    @property
    def recovery_checks(self) -> int:
        """Good checks of the level below before it is used again; doubles with every trip."""
        factor: int = min(2 ** max(0, self.trips - 1), MAX_RECOVERY_FACTOR)
        return self._bounds.recovery * factor

    def observe(self, level: int, seen: Observation) -> str:
        """Count a check of `level`; return why this changes the level, or ""."""
        if level == self.level < self.top:
            self.checks_at_level.append(seen)
            return self._go_up()
        if 0 <= level == self.level - 1:
            self.checks_below.append(seen)
            while len(self.checks_below) > self.recovery_checks:
                self.checks_below.popleft()
            return self._go_down()
        return ""

    def reset(self) -> None:
        """Forget everything."""
        self._move(0)
        self.trips = 0

    def _go_up(self) -> str:
        seen, bounds = self.checks_at_level, self._bounds
        if len(seen) < bounds.min_checks:
            return ""
        agreeing = sum(o.agrees for o in seen)
        if binomial_cdf(agreeing, len(seen), bounds.agreement) < FALSE_ALARM_RATE:
            why = f"{agreeing} of {len(seen)} checks agreed with full prefill"
            why += f", at least {bounds.agreement:.0%} are asked for"
        elif (low := mean_lower_bound([o.kl for o in seen])) > bounds.kl:
            why = f"KL to full prefill was at least {low:.2g} nats in the mean of {len(seen)} "
            why += f"checks, at most {bounds.kl:g} are allowed"
        else:
            return ""
        self.trips += 1
        self._move(self.level + 1)
        return why

    def _go_down(self) -> str:
        seen, bounds = self.checks_below, self._bounds
        if len(seen) < self.recovery_checks:
            return ""
        agreement, kl = agreement_of(seen), mean_kl(seen)
        if agreement < (1 + bounds.agreement) / 2 or kl > bounds.kl / 2:
            return ""
        count = len(seen)
        self._move(self.level - 1)
        return f"{agreement:.0%} of {count} checks agreed again, mean KL {kl:.2g} nats"

    def _move(self, level: int) -> None:
        self.level = level
        self.checks_at_level.clear()
        self.checks_below.clear()


def agreement_of(seen: Sequence[Observation] | deque[Observation]) -> float:
    """Return the share of the checks that agreed; there must be at least one."""
    return sum(o.agrees for o in seen) / len(seen)


def mean_kl(seen: Sequence[Observation] | deque[Observation]) -> float:
    """Return the mean KL in nats; there must be at least one check."""
    return math.fsum(o.kl for o in seen) / len(seen)


def binomial_cdf(successes: int, trials: int, chance: float) -> float:
    """Return the probability of at most `successes` in `trials`, each with probability `chance`."""
    return math.fsum(
        math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        for k in range(successes + 1)
    )


def mean_lower_bound(values: Sequence[float]) -> float:
    """Return the lower bound of the mean with 99 % confidence, by the normal approximation."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return 0.0
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean - _NORMAL_99 * math.sqrt(variance / n)
