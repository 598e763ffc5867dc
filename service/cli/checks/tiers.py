"""Checks the tiers: whether Redis answers, and whether it evicts when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import redis

from service.cli.checks.finding import Finding, fail, ok, warn
from service.cli.output import size
from service.settings import Settings
from service.worker_settings import MIB

OLDEST = (6, 0)
TIMEOUT_S = 2.0


def check(settings: Settings) -> Iterator[Finding]:
    memory, ssd = settings.memory_tier_mib, settings.ssd_tier_gib
    if not (memory or ssd or settings.redis_url):
        yield warn("tiers", "no tier: every prompt is computed from its first token",
                   "give --memory-tier-mib, --ssd-tier-gib or --redis")  # fmt: skip
    else:
        yield ok("tiers", f"memory {size(memory * MIB)}, SSD {ssd:g} GiB, "
                 f"Redis {_shown(settings.redis_url)}")  # fmt: skip
    if settings.redis_url:
        yield from _redis(settings)


def _redis(settings: Settings) -> Iterator[Finding]:
    where = _shown(settings.redis_url)
    try:
        server = redis.Redis.from_url(
            settings.redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
        try:
            facts: dict[str, Any] = {**server.info("server"), **server.info("memory")}
        finally:
            server.close()
    except (redis.RedisError, ValueError, OSError) as error:
        yield fail("redis", f"{where} does not answer: {error}",
                   "start it, or mend --redis; without it serving goes on from the other "
                   "tiers")  # fmt: skip
        return
    version = str(facts.get("redis_version", "0"))
    if tuple(int(n) for n in version.split(".")[:2] if n.isdigit()) < OLDEST:
        yield warn("redis", f"{where} is version {version}", "6.0 or newer was tested")
    else:
        yield ok("redis", f"{where} answers, version {version}")
    yield _bound(facts, settings.redis_ttl_s)


def _bound(facts: dict[str, Any], ttl_s: int) -> Finding:
    """Check Redis' memory limit and eviction: KV is a cache, so a full Redis must evict."""
    limit, used = int(facts.get("maxmemory", 0)), int(facts.get("used_memory", 0))
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    text = f"{size(used)} used, maxmemory {size(limit) if limit else 'not set'}, {policy}"
    evicts = policy.startswith("allkeys-") or (policy.startswith("volatile-") and ttl_s > 0)
    if not limit:
        return warn("redis memory", f"{text}: it grows until the machine has no memory left",
                    "redis-cli CONFIG SET maxmemory 8gb, and in its configuration")  # fmt: skip
    if not evicts:
        return warn("redis memory", f"{text}: once full it refuses new KV",
                    "redis-cli CONFIG SET maxmemory-policy allkeys-lru")  # fmt: skip
    return ok("redis memory", text)


def _shown(url: str) -> str:
    """The URL without its password."""
    if not url:
        return "none"
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
