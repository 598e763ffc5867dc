"""When requests are to be sent: seconds from the start of a run. Knows nothing of what is sent."""

from __future__ import annotations

import random


def poisson(rate: float, duration_s: float, seed: int | str) -> list[float]:
    """A Poisson process of `rate` requests a second: independent users who do not wait for one
    another. The same seed gives the same arrivals. Raises ValueError."""
    if not rate > 0 or not duration_s > 0:
        raise ValueError(f"rate and duration must be above 0, not {rate} and {duration_s}")
    rng = random.Random(f"arrivals/{seed}")
    out: list[float] = []
    at = rng.expovariate(rate)
    while at < duration_s:
        out.append(at)
        at += rng.expovariate(rate)
    return out
