"""How much a key and its tenant may use: requests and tokens per minute, documents and bytes.

A rate is a token bucket that holds one minute's worth, so a quiet minute allows a burst of that
size and no more. How many tokens an answer takes is known only afterwards. A request is therefore
admitted while there is any credit left, and may overdraw it once. Buckets live in this process and
start full. Documents and bytes are counted by the job store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.errors import QuotaExceeded

MAX_BUCKETS = 4096  # full ones are dropped when there are more


@dataclass(frozen=True)
class Limits:
    """Quotas of a key or a tenant; None: no limit."""

    documents: int | None = None
    bytes: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass
class _Bucket:
    """Credit that grows by `per_minute` each minute, up to `per_minute`."""

    per_minute: int
    credit: float
    refilled_at: float

    def refill(self, now: float) -> None:
        self.credit = min(
            self.per_minute, self.credit + (now - self.refilled_at) * self.per_minute / 60
        )
        self.refilled_at = now

    @property
    def wait_s(self) -> float:
        """Seconds until there is credit for one more; 0 if there is some now."""
        return max(0.0, (1 - self.credit) * 60 / self.per_minute)


class Quotas:
    """Enforces the quotas of keys and of tenants. Must be used on one thread."""

    def __init__(self, per_tenant: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_tenant`: the quotas of every tenant."""
        self.per_tenant = per_tenant
        self._clock = clock
        self._buckets: dict[tuple[str, str, str], _Bucket] = {}

    def enter(self, tenant: str, key_id: str, limits: Limits) -> None:
        """Count one request.

        Raises:
            QuotaExceeded: A rate is used up; the request is then not counted.
        """
        if not key_id:
            return
        requests = self._rates("requests_per_minute", tenant, key_id, limits)
        rates = requests + self._rates("tokens_per_minute", tenant, key_id, limits)
        name, bucket, owner = max(rates, key=lambda rate: rate[1].wait_s, default=(None,) * 3)
        if bucket is not None and bucket.wait_s:
            raise QuotaExceeded(
                f"the quota {name} of this {owner} is {bucket.per_minute} and is used up: wait for "
                "Retry-After",
                field=name,
                retry_after_s=bucket.wait_s,
            )
        for _, spent, _ in requests:
            spent.credit -= 1

    def spend(self, tenant: str, key_id: str, limits: Limits, tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        for _, bucket, _ in self._rates("tokens_per_minute", tenant, key_id, limits):
            bucket.credit -= tokens

    def check_stored(self, limits: Limits, documents: int, size: int) -> None:
        """Raise QuotaExceeded if a tenant may not have so many documents and bytes."""
        for name, used in (("documents", documents), ("bytes", size)):
            for owner, limit in (
                ("key", getattr(limits, name)),
                ("tenant", getattr(self.per_tenant, name)),
            ):
                if limit is not None and used > limit:
                    raise QuotaExceeded(
                        f"the quota {name} of this {owner} is {limit}, with these documents it "
                        f"would be {used}: delete documents, or ask for a larger quota",
                        field=name,
                        retry_after_s=60.0,
                    )

    def _rates(
        self, name: str, tenant: str, key_id: str, limits: Limits
    ) -> list[tuple[str, _Bucket, str]]:
        """(quota, its refilled bucket, "key" or "tenant") for those that have a limit."""
        now = self._clock()
        out = []
        for owner, whose, limit in (
            ("key", key_id, getattr(limits, name)),
            ("tenant", tenant, getattr(self.per_tenant, name)),
        ):
            if limit is not None:
                bucket = self._bucket((name, owner, whose), limit, now)
                bucket.refill(now)
                out.append((name, bucket, owner))
        return out

    def _bucket(self, name: tuple[str, str, str], limit: int, now: float) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._drop_full(now)
            bucket = self._buckets[name] = _Bucket(limit, limit, now)
        bucket.per_minute = limit
        return bucket

    def _drop_full(self, now: float) -> None:
        """Forget full buckets: a new one starts full anyway."""
        for name, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if bucket.credit >= bucket.per_minute:
                del self._buckets[name]
