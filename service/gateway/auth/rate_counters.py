"""Counts what has been used of rates, in this process.

A rate is a token bucket that holds one minute's worth, kept as the one moment at which it will be
full again (the generic cell rate algorithm, GCRA): using `n` of a rate of `per_minute` moves that
moment by n × 60 / per_minute seconds, from now on if it has passed. There is credit for one more
while the moment is at most 60 - 60 / per_minute seconds ahead. So a quiet minute allows a burst of
`per_minute` and no more; in any time of t seconds at most per_minute × (1 + t / 60) are let
through; and tokens, which are known only after the answer, may overdraw a bucket once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

MINUTE_S = 60.0
ROUNDING_S = 1e-6  # less than this is no wait
MAX_BUCKETS = 4096  # full ones are dropped when there are more


@dataclass(frozen=True)
class Rate:
    """A limit per minute of one key, or of one tenant."""

    name: str
    owner: Literal["key", "tenant"]
    tenant: str
    key_id: str
    per_minute: int

    @property
    def bucket(self) -> tuple[str, str, str]:
        """What rates that differ only in their limit have in common."""
        return (self.name, self.tenant, self.key_id)


@dataclass(frozen=True)
class UsedUp:
    """Why a request is refused: this rate has credit again after so many seconds."""

    rate: Rate
    wait_s: float


class RateCounters:
    """Counts in this process; every bucket is full at its start.

    Used on the event loop's thread. Nothing here blocks it.

    Args:
        clock: Returns seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[tuple[str, str, str], float] = {}

    async def start(self) -> None:
        """Connect to what counts, before the first call.

        Raises:
            InvalidSetting: It cannot be used as it is set.
        """

    async def close(self) -> None:
        """Pass on what is not counted yet, and disconnect."""

    async def admit(self, requests: Sequence[Rate], tokens: Sequence[Rate]) -> UsedUp | None:
        """Count one request in `requests` if every rate, also of `tokens`, has credit.

        Returns the rate that has to be waited for longest, and nothing was counted; None if the
        request was admitted. All rates of a call are of one tenant.
        """
        longest = max(
            (UsedUp(rate, self._wait_s(rate)) for rate in (*requests, *tokens)),
            key=lambda used_up: used_up.wait_s,
            default=None,
        )
        if longest is not None and longest.wait_s >= ROUNDING_S:
            return longest
        self._count(requests, 1)
        return None

    def spend(self, tokens: Sequence[Rate], amount: int) -> None:
        """Count `amount` of each of these rates, whether they have credit or not."""
        self._count(tokens, amount)

    def _count(self, rates: Sequence[Rate], amount: int) -> None:
        now = self._clock()
        for rate in rates:
            if rate.bucket not in self._full_at and len(self._full_at) >= MAX_BUCKETS:
                self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            begun = max(now, self._full_at.get(rate.bucket, now))
            self._full_at[rate.bucket] = begun + amount * MINUTE_S / rate.per_minute

    def _wait_s(self, rate: Rate) -> float:
        """Return the seconds until there is credit for one more; 0 or less if there is some."""
        now = self._clock()
        ahead = self._full_at.get(rate.bucket, now) - now
        return ahead - MINUTE_S + MINUTE_S / rate.per_minute
