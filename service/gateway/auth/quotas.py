"""How much a key and its tenant may use: requests and tokens per minute, documents and bytes.

Rates are counted by `RateCounters`: in this process, or in Redis for all gateways together. How
many tokens an answer takes is known only afterwards. A request is therefore admitted while there is
any credit left, and may overdraw it once. Documents and bytes are counted by the job store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.errors import QuotaExceeded
from service.gateway.auth.rate_counters import Rate, RateCounters


@dataclass(frozen=True)
class Limits:
    """Quotas of a key or a tenant; None: no limit."""

    documents: int | None = None
    bytes: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Quotas:
    """Enforces the quotas of keys and of tenants. Must be used on one thread.

    Args:
        per_tenant: The quotas of every tenant.
        counters: Of rates; None: this process counts.
    """

    def __init__(self, per_tenant: Limits, counters: RateCounters | None = None) -> None:
        self.per_tenant = per_tenant
        self.counters = counters or RateCounters()

    async def enter(self, tenant: str, key_id: str, limits: Limits) -> None:
        """Count one request.

        Raises:
            QuotaExceeded: A rate is used up; the request is then not counted.
        """
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
        return any(
            limit is not None
            for owner in (limits, self.per_tenant)
            for limit in (owner.documents, owner.bytes)
        )

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
        self,
        name: Literal["requests_per_minute", "tokens_per_minute"],
        tenant: str,
        key_id: str,
        limits: Limits,
    ) -> list[Rate]:
        """Return the rates of key and tenant, those that have a limit."""
        of_key, of_tenant = getattr(limits, name), getattr(self.per_tenant, name)
        rates = []
        if of_key is not None:
            rates.append(Rate(name, "key", tenant, key_id, of_key))
        if of_tenant is not None:
            rates.append(Rate(name, "tenant", tenant, "", of_tenant))
        return rates
