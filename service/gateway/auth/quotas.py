"""How much a key and its tenant may use: requests and tokens per minute, documents and bytes.

How many tokens an answer takes is known only afterwards. A request is therefore admitted while
there is any credit left, and may overdraw it once. Documents and bytes are counted by the job
store.

A rate is a token bucket that holds one minute's worth, kept as the one moment at which it will be
full again (the generic cell rate algorithm, GCRA): using `n` of a rate of `per_minute` moves that
moment by n × 60 / per_minute seconds, from now on if it has passed. There is credit for one more
while the moment is at most 60 - 60 / per_minute seconds ahead. So in any time of t seconds at most
per_minute × (1 + t / 60) are let through.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvstitch.service.errors import QuotaExceeded

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
    """Counts in this process; every bucket is full at its start. Used on the event loop's thread,
    which nothing here blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[tuple[str, str, str], float] = {}

    async def start(self) -> None:
        """Connect to what counts, before the first call; raises InvalidSetting."""

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


@dataclass(frozen=True)
class Limits:
    """Quotas of a key or a tenant; None: no limit."""

    documents: int | None = None
    bytes: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Quotas:
    """Enforces the quotas of keys, and those of every tenant. Must be used on one thread."""

    def __init__(self, per_tenant: Limits, counters: RateCounters | None = None) -> None:
        self.per_tenant = per_tenant
        self.counters = counters or RateCounters()

    async def enter(self, tenant: str, key_id: str, limits: Limits) -> None:
        """Count one request. Raises QuotaExceeded, and has not counted it, if a rate is used up."""
        if not key_id:
            return
        requests = self._rates("requests_per_minute", tenant, key_id, limits)
        tokens = self._rates("tokens_per_minute", tenant, key_id, limits)
        if not requests and not tokens:
            return
        used_up = await self.counters.admit(requests, tokens)
        if used_up is not None:
            rate = used_up.rate
            raise QuotaExceeded(
                f"the quota {rate.name} of this {rate.owner} is {rate.per_minute} and is used up: "
                "wait for Retry-After",
                field=rate.name,
                retry_after_s=used_up.wait_s,
            )

    def spend(self, tenant: str, key_id: str, limits: Limits, tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        rates = self._rates("tokens_per_minute", tenant, key_id, limits)
        if rates and tokens:
            self.counters.spend(rates, tokens)

    def limits_stored(self, limits: Limits) -> bool:
        """Return whether what a sender with these limits stores must be counted at all."""
        owners = limits, self.per_tenant
        return any(of.documents is not None or of.bytes is not None for of in owners)

    def check_stored(self, limits: Limits, documents: int, size: int) -> None:
        """Raise QuotaExceeded if a tenant may not have so many documents and bytes."""
        for name, used in (("documents", documents), ("bytes", size)):
            for owner, most in (("key", limits), ("tenant", self.per_tenant)):
                if (limit := getattr(most, name)) is not None and used > limit:
                    raise QuotaExceeded(
                        f"the quota {name} of this {owner} is {limit}, with these documents it "
                        "would be more: delete documents, or ask for a larger quota",
                        field=name,
                        retry_after_s=60.0,
                    )

    def _rates(
        self,
        name: Literal["requests_per_minute", "tokens_per_minute"],
        tenant: str,
        key_id: str,
        limits: Limits,
    ) -> list[Rate]:
        """Return the rates of key and tenant, those that have a limit."""
        of_key, of_tenant = getattr(limits, name), getattr(self.per_tenant, name)
        key = [] if of_key is None else [Rate(name, "key", tenant, key_id, of_key)]
        return key + ([] if of_tenant is None else [Rate(name, "tenant", tenant, "", of_tenant)])
