"""Counts rates of all gateways together, in Redis or a Redis Cluster.

    request ── admit ── one call of a script: settle tokens, look at every rate, count or refuse
    answer tokens ── added up here ── with the next request of their tenant, or after SEND_S

Redis' clock is the only one, so gateways' clocks need not agree. A bucket is one value, the moment
at which it will be full (see quotas.py), which expires at that moment. All buckets of a
tenant are in one slot of a cluster. Names are HMACs: whoever reads Redis learns no tenant or key.

Redis away: this gateway counts by itself, with what it has let through during the last minute, and
looks again every RETRY_S, in the background. The gateways together may then let through as many
times the limit as there are gateways. Nobody is refused because Redis is away.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.auth.quotas import Rate, RateCounters, UsedUp
from kvstitch.service.gateway.prometheus import GatewayMetrics

logger = logging.getLogger(__name__)

CALL_S = 0.5  # for one call; then this gateway counts by itself
CALLS = 16  # under way at a time, and so connections
RETRY_S = 1.0  # until Redis is asked again
SEND_S = 0.1  # tokens wait so long for a request of their tenant to go with
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
PREFIX = "kvstitch:quota"

# Microseconds. KEYS: the buckets; ARGV, three each: limit per minute, used before whether there is
# credit or not, and used if there is credit for one more in every bucket. Returns the bucket that
# has to be waited for longest, 0 if there is none, and how long.
SCRIPT = """
local minute = 60000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full, changed, worst, longest = {}, {}, 0, 0
for i, key in ipairs(KEYS) do
  local limit, spent = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
  full[i] = math.max(tonumber(redis.call('GET', key) or now), now) + spent * minute / limit
  changed[i] = spent > 0
  local wait = full[i] - now - minute + minute / limit
  if wait >= 1 and wait > longest then worst, longest = i, wait end
end
for i, key in ipairs(KEYS) do
  local taken = tonumber(ARGV[3 * i])
  if worst == 0 and taken > 0 then
    full[i] = full[i] + taken * minute / tonumber(ARGV[3 * i - 2])
    changed[i] = true
  end
  if changed[i] then
    local left = math.ceil((full[i] - now) / 1000)
    redis.call('SET', key, string.format('%.17g', full[i]), 'PX', left)
  end
end
return {worst, math.ceil(longest)}
"""


class RedisCounters(RateCounters):
    """Counts in Redis for all gateways, and in this process as well for when Redis is away. `start`
    connects, and asks for the secret that keys the names, in hex, which all gateways share."""

    def __init__(self, url: str, secret: Callable[[], str], metrics: GatewayMetrics) -> None:
        super().__init__()
        self._url = url
        self._read_secret = secret
        self._metrics = metrics
        self._secret = b""
        self._client: Any = None
        self._script: Any = None
        self._calls = asyncio.Semaphore(CALLS)
        self._unsent: dict[Rate, int] = {}  # tokens that Redis does not know yet
        self._sending: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None  # while Redis is away

    async def start(self) -> None:
        self._secret = bytes.fromhex(await asyncio.to_thread(self._read_secret))
        self._client = _client(self._url)
        self._script = self._client.register_script(SCRIPT)

    async def close(self) -> None:
        await _ended(self._sending)
        await self._send()
        await _ended(self._reconnecting)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def admit(self, requests: Sequence[Rate], tokens: Sequence[Rate]) -> UsedUp | None:
        rates = [*requests, *tokens]
        spent = [self._unsent.pop(rate, 0) for rate in rates]
        found = await self._run(rates, spent, [1] * len(requests) + [0] * len(tokens))
        self._metrics.quota_checks.labels("alone" if found is None else "shared").inc()
        if found is None:
            return await super().admit(requests, tokens)
        worst, microseconds = found
        if worst:
            return UsedUp(rates[worst - 1], microseconds / 1e6)
        self._count(requests, 1)
        return None

    def spend(self, tokens: Sequence[Rate], amount: int) -> None:
        self._count(tokens, amount)
        for rate in tokens:
            self._unsent[rate] = self._unsent.get(rate, 0) + amount
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_later())

    async def _send_later(self) -> None:
        while self._unsent:
            await asyncio.sleep(SEND_S)
            await self._send()

    async def _send(self) -> None:
        """Count in Redis what was spent, one tenant after another."""
        unsent, self._unsent = self._unsent, {}
        for tenant in {rate.tenant for rate in unsent}:
            rates = [rate for rate in unsent if rate.tenant == tenant]
            await self._run(rates, [unsent[rate] for rate in rates], [0] * len(rates))

    async def _run(
        self, rates: Sequence[Rate], spent: Sequence[int], taken: Sequence[int]
    ) -> tuple[int, int] | None:
        """Return what the script returns, None while Redis is away."""
        if self._client is None or self._reconnecting is not None:
            return None
        names = [self._name(rate) for rate in rates]
        limits = [rate.per_minute for rate in rates]
        values = [value for three in zip(limits, spent, taken, strict=True) for value in three]
        try:
            worst, longest = await self._call(names, values)
        except Exception as error:
            if self._reconnecting is None:
                logger.warning(
                    "quotas: Redis (KVSTITCH_COUNTERS_URL) does not count, this gateway counts by "
                    "itself until it does: %s: %s",
                    type(error).__name__,
                    error,
                )
                self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect(names))
            return None
        return int(worst), int(longest)

    async def _reconnect(self, names: Sequence[str]) -> None:
        """Repeat the call that has failed, changing nothing, until Redis answers."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self._call(names, [1, 0, 0] * len(names))
            except Exception:
                logger.debug("quotas: Redis is still away", exc_info=True)
            else:
                break
        self._reconnecting = None
        logger.warning("quotas: Redis counts again")

    async def _call(self, names: Sequence[str], values: Sequence[int]) -> Any:
        """Run the script."""
        async with asyncio.timeout(CALL_S), self._calls:
            return await self._script(keys=names, args=values)

    def _name(self, rate: Rate) -> str:
        tenant = self._hidden("tenant", rate.tenant)
        key = self._hidden("key", rate.key_id) if rate.key_id else ""
        return f"{PREFIX}:{{{tenant}}}:{rate.name}:{key}"

    def _hidden(self, kind: str, text: str) -> str:
        return hmac.digest(self._secret, f"quota {kind} {text}".encode(), "sha256")[:16].hex()


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _client(url: str) -> Any:
    """Return a client that connects when it is first used."""
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError

    # Once more: the server may have closed a connection that was idle.
    settings: dict[str, Any] = {
        "socket_timeout": CALL_S, "socket_connect_timeout": CALL_S,
        "retry": Retry(NoBackoff(), 1),
    }  # fmt: skip
    try:
        if not url.startswith(CLUSTER_SCHEMES):
            return redis.asyncio.Redis.from_url(url, **settings)
        nodes, of_url = _cluster_nodes(url)
        return redis.asyncio.RedisCluster(startup_nodes=nodes, **of_url, **settings)
    except (ValueError, RedisError) as error:
        raise InvalidSetting(f"counters_url (KVSTITCH_COUNTERS_URL): {error}") from error


def _cluster_nodes(url: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the servers that an address names, and its other settings."""
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.connection import parse_url

    scheme, _, rest = url.partition("+cluster://")
    login, at, addresses = rest.rstrip("/").rpartition("@")
    nodes, settings = [], {}
    for address in addresses.split(","):
        settings = dict(parse_url(f"{scheme}://{login}{at}{address}"))
        if "host" not in settings:
            raise ValueError(f"{address!r} names no server: write host:port,host:port")
        nodes.append(ClusterNode(settings.pop("host"), settings.pop("port", 6379)))
    if settings.pop("db", 0):
        raise ValueError("a Redis Cluster has one database: leave the number out of the address")
    if settings.pop("connection_class", None) is not None:
        settings["ssl"] = True
    return nodes, settings
