"""When a fusion method is no longer trusted, and when it is again: observations in, moves out.

    level 0            1 … top-1                top
    as asked for       its ratio raised         full prefill
        ──── worse than the bounds ──►    one level up, at once
        ◄─── better than half-way ────    one level down, after `recovery` checks of that level

Up takes evidence, not a bad draw: with 99 % confidence the method agrees less often, or differs by
more, than the bounds allow. Down is never a trial on answers: the level below is run beside the
answers, in spare time, and entered when it has been good for long. Pure: knows no tensors, no
requests and no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

DOUBT = 0.01
"""Chance of moving up although the method is exactly as good as the bounds ask."""
_NORMAL_99 = 2.326
MOST_PATIENCE = 8
"""How many times `recovery` a method that fails again and again has to be good for."""


@dataclass(frozen=True)
class Observation:
    """One next-token distribution against full prefill's: KL(full ‖ fused) in nats, and whether
    both have the same most likely token."""

    kl: float
    agrees: bool


@dataclass(frozen=True)
class Bounds:
    """A method is to agree in at least `agreement` of the checks, and to differ by at most
    `kl` nats in the mean. Of the last `window` checks, and not before there are `min_checks`.
    recovery: checks of the level below that must be good before it is returned to."""

    window: int = 32
    min_checks: int = 8
    agreement: float = 0.75
    kl: float = 0.5
    recovery: int = 32


class Drift:
    """What is known of one method with its parameters. Not thread-safe."""

    def __init__(self, bounds: Bounds, top: int) -> None:
        """top: the level at which it is replaced by full prefill, at least 1."""
        assert top >= 1
        self._bounds = bounds
        self.top = top
        self.level = 0
        self.trips = 0
        self.here: deque[Observation] = deque(maxlen=bounds.window)
        self.below: deque[Observation] = deque()

    @property
    def needed(self) -> int:
        """Good checks of the level below until it is returned to; doubles with every trip."""
        patience: int = min(2 ** max(0, self.trips - 1), MOST_PATIENCE)
        return self._bounds.recovery * patience

    def observe(self, level: int, seen: Observation) -> str:
        """Count a check of `level`. Returns why the level changed, "" if it did not. Checks of a
        level that is neither the current one nor the one below come too late and count nothing."""
        if level == self.level < self.top:
            self.here.append(seen)
            return self._up()
        if 0 <= level == self.level - 1:
            self.below.append(seen)
            while len(self.below) > self.needed:
                self.below.popleft()
            return self._down()
        return ""

    def reset(self) -> None:
        self._move(0)
        self.trips = 0

    def _up(self) -> str:
        seen, bounds = self.here, self._bounds
        if len(seen) < bounds.min_checks:
            return ""
        agreeing = sum(o.agrees for o in seen)
        if at_most(agreeing, len(seen), bounds.agreement) < DOUBT:
            why = f"{agreeing} of {len(seen)} checks agreed with full prefill"
            why += f", at least {bounds.agreement:.0%} are asked for"
        elif (low := least_mean([o.kl for o in seen])) > bounds.kl:
            why = f"KL to full prefill was at least {low:.2g} nats in the mean of {len(seen)} "
            why += f"checks, at most {bounds.kl:g} are allowed"
        else:
            return ""
        self.trips += 1
        self._move(self.level + 1)
        return why

    def _down(self) -> str:
        seen, bounds = self.below, self._bounds
        if len(seen) < self.needed:
            return ""
        agreement, kl = agreement_of(seen), mean_kl(seen)
        if agreement < (1 + bounds.agreement) / 2 or kl > bounds.kl / 2:
            return ""
        count = len(seen)
        self._move(self.level - 1)
        return f"{agreement:.0%} of {count} checks agreed again, mean KL {kl:.2g} nats"

    def _move(self, level: int) -> None:
        self.level = level
        self.here.clear()
        self.below.clear()


def agreement_of(seen: Sequence[Observation] | deque[Observation]) -> float:
    """Share of the checks that agreed; there must be one."""
    return sum(o.agrees for o in seen) / len(seen)


def mean_kl(seen: Sequence[Observation] | deque[Observation]) -> float:
    """Mean KL in nats; there must be a check."""
    return math.fsum(o.kl for o in seen) / len(seen)


def at_most(successes: int, trials: int, chance: float) -> float:
    """Probability of so few successes in so many trials, if each has this chance."""
    return math.fsum(
        math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        for k in range(successes + 1)
    )


def least_mean(values: Sequence[float]) -> float:
    """What the mean is above with 99 % confidence, by the normal approximation: one value that is
    far off says little, many say much."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return 0.0
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean - _NORMAL_99 * math.sqrt(variance / n)
