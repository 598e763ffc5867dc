"""Checks the tiers: whether Redis and S3 answer, and whether Redis evicts when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import redis

from service.cli.doctor.findings import Finding, fail, ok, warn
from service.cli.output import size
from service.settings import Settings
from service.shared.worker_settings import MIB

OLDEST = (6, 0)
TIMEOUT_S = 2.0


def check_tiers(settings: Settings) -> Iterator[Finding]:
    memory, ssd = settings.memory_tier_mib, settings.ssd_tier_gib
    if not (memory or ssd or settings.redis_url or settings.s3_url):
        yield warn("tiers", "no tier: every prompt is computed from its first token",
                   "give --memory-tier-mib, --ssd-tier-gib, --redis or --s3")  # fmt: skip
    else:
        yield ok("tiers", f"memory {size(memory * MIB)}, SSD {ssd:g} GiB, "
                 f"Redis {_shown(settings.redis_url)}, "
                 f"S3 {settings.s3_url or 'none'}")  # fmt: skip
    scheme, of_cluster, rest = settings.redis_url.partition("+cluster://")
    if of_cluster:
        login, at, addresses = rest.rpartition("@")
        for address in addresses.split(","):
            yield from _redis(f"{scheme}://{login}{at}{address}", settings, cluster=True)
    elif settings.redis_url:
        yield from _redis(settings.redis_url, settings, cluster=False)
    if settings.s3_url:
        yield _s3(settings)


def _s3(settings: Settings) -> Finding:
    from kvstore import S3Place, S3Tier, TierError  # imports torch

    tier = S3Tier(S3Place(settings.s3_url, settings.s3_endpoint, settings.s3_region))
    try:
        tier.start()
        tier.read_header("0" * 32)
    except TierError as error:
        return fail("s3", f"{settings.s3_url} cannot be read: {error}",
                    "mend --s3, --s3-endpoint or the credentials (AWS_ACCESS_KEY_ID, ...); without "
                    "it serving goes on from the other tiers")  # fmt: skip
    finally:
        tier.close()
    return ok("s3", f"{settings.s3_url} answers")


def _redis(url: str, settings: Settings, *, cluster: bool) -> Iterator[Finding]:
    where = _shown(url)
    try:
        server = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
        try:
            facts: dict[str, Any] = {
                **server.info("server"), **server.info("memory"), **server.info("cluster")
            }  # fmt: skip
        finally:
            server.close()
    except (redis.RedisError, ValueError, OSError) as error:
        yield fail("redis", f"{where} does not answer: {error}",
                   "start it, or mend --redis; without it serving goes on from the other "
                   "tiers")  # fmt: skip
        return
    if bool(facts.get("cluster_enabled")) != cluster:
        one = "is not part of a cluster" if cluster else "is part of a cluster"
        yield fail("redis", f"{where} {one}",
                   f"--redis {'redis' if cluster else 'redis+cluster'}://...")  # fmt: skip
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
    """Return the URL without its password."""
    if not url:
        return "none"
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
