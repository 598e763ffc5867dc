"""The times at which requests are sent, in seconds from the start of a run."""

from __future__ import annotations

import random

from loadtest.errors import InvalidInput


def poisson(rate: float, duration_s: float, seed: int | str) -> list[float]:
    """Arrival times of independent users: a Poisson process with a fixed number of requests.

    The number is rate · duration, at least 1. Given the number, the times of a Poisson process are
    independent and uniform. vLLM's generator fixes the number too; otherwise the rate of a short
    step could be 20 % above or below the reported one.

    Args:
        rate: requests per second.
        duration_s: length of the run in seconds.
        seed: the same seed gives the same times.

    Raises:
        InvalidInput: rate or duration is not positive.
    """
    if not rate > 0 or not duration_s > 0:
        raise InvalidInput(f"rate and duration must be above 0, not {rate} and {duration_s}")
    rng = random.Random(f"arrivals/{seed}")
    return sorted(rng.uniform(0, duration_s) for _ in range(max(1, round(rate * duration_s))))
