"""When requests are to be sent: seconds from the start of a run. Knows nothing of what is sent."""

from __future__ import annotations

import random


def poisson(rate: float, duration_s: float, seed: int | str) -> list[float]:
    """A Poisson process of `rate` requests a second, of independent users who do not wait for one
    another, given that it has rate · duration requests, at least one: their times are then
    independent and uniform. (vLLM's generator fixes the number, too: a short step would otherwise
    be 20 % above or below the rate it is reported for.) The same seed gives the same arrivals.

    Raises ValueError.
    """
    if not rate > 0 or not duration_s > 0:
        raise ValueError(f"rate and duration must be above 0, not {rate} and {duration_s}")
    rng = random.Random(f"arrivals/{seed}")
    return sorted(rng.uniform(0, duration_s) for _ in range(max(1, round(rate * duration_s))))
