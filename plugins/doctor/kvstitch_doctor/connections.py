"""Checks what is reached by network: address, workers, tiers of KV, and a running service."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from kvstitch.client import Client, errors
from kvstitch.service import __version__
from kvstitch.service.cli.output import size
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.auth.keys import StoredKey
from kvstitch.service.gateway.databases import key_store
from kvstitch.service.gateway.fleet.discovery import look_up
from kvstitch.service.gateway.server import listen
from kvstitch.service.plugins import TierKind, load_object, tiers
from kvstitch.service.settings import Settings
from kvstitch.service.shared import resources
from kvstitch.service.shared.fleet_secret import is_loopback
from kvstitch.service.shared.worker_settings import MIB
from kvstitch_doctor import Finding, fail, ok, warn
from kvstitch_doctor.data_folder import served_by

PATIENCE_S = 2.0
OLDEST_REDIS = (6, 0)
CHECK = "service"


def check_address(settings: Settings) -> Iterator[Finding]:
    yield _port(settings)
    yield _exposure(settings)


def _port(settings: Settings) -> Finding:
    where = f"{settings.host}:{settings.port}"
    try:
        listen(settings.host, settings.port).close()
    except KvstitchError as error:
        if pid := served_by(settings.data_dir):
            return ok("port", f"{where} is taken; process {pid} serves from the data folder")
        return fail("port", f"{where} is taken or not of this machine", error.message)
    return ok("port", f"{where} is free")


def _exposure(settings: Settings) -> Finding:
    keys: list[StoredKey] = []
    if settings.database or (settings.data_dir / "keys.sqlite3").is_file():
        try:
            with key_store(settings) as store:
                keys = store.all()
        except KvstitchError as error:
            what = "see that it can be reached" if settings.database else "restore the file"
            return fail("keys", error.message, f"{what}, or make new keys")
    if not keys or settings.allow_anonymous:
        if is_loopback(settings.host):
            return ok("keys", f"no key is needed; only this machine reaches {settings.host}")
        if settings.allow_anonymous:
            return warn("keys", f"whoever reaches {settings.host} is served without a key",
                        "sure? else unset KVSTITCH_ALLOW_ANONYMOUS")  # fmt: skip
        return fail("keys", f"others reach {settings.host}, and there is no key: serve refuses",
                    "kvstitch keys create")  # fmt: skip
    valid = sum(key.valid(time.time()) for key in keys)
    if not valid:
        return fail("keys", f"none of {len(keys)} keys is valid any more: everybody is refused",
                    "kvstitch keys create")  # fmt: skip
    return ok("keys", f"{valid} of {len(keys)} keys are valid; every request needs one")


def check_workers(settings: Settings) -> Iterator[Finding]:
    """Yield one finding per worker that is listed; nothing where the gateway starts its own."""
    listed = settings.worker_addresses
    if not listed or listed.startswith("ray://"):
        return
    addresses = listed.split(",")
    if listed.startswith("dns://"):
        found = asyncio.run(look_up(listed))
        addresses = found or []
        if not addresses:
            yield fail("workers", f"{listed} has no addresses", "start workers, or mend the name")
    for address in addresses:
        if address.startswith("tcp://"):
            yield _reached(address)


def _reached(address: str) -> Finding:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
    except OSError as error:
        return warn("workers", f"{address} does not take connections: {error}",
                    "start it: kvstitch worker; it listens when its model is loaded")  # fmt: skip
    return ok("workers", f"{address} takes connections")


def check_tiers(settings: Settings) -> Iterator[Finding]:
    memory, ssd = settings.memory_tier_mib, settings.ssd_tier_gib
    of_plugins = [tier for tier in tiers().values() if tier.is_set(settings)]
    more = "".join(f", {tier.name}" for tier in of_plugins)
    if not (memory or settings.has_slower_tiers):
        yield warn("tiers", "no tier: every prompt is computed from its first token",
                   "give --memory-tier-mib, --ssd-tier-gib or --redis")  # fmt: skip
    else:
        yield ok("tiers", f"memory {size(memory * MIB)}, SSD {ssd:g} GiB, Redis "
                 f"{_shown(settings.redis_url)}{more}")  # fmt: skip
    scheme, of_cluster, rest = settings.redis_url.partition("+cluster://")
    if of_cluster:
        login, at, addresses = rest.rpartition("@")
        for address in addresses.split(","):
            yield from _redis(f"{scheme}://{login}{at}{address}", settings, cluster=True)
    elif settings.redis_url:
        yield from _redis(settings.redis_url, settings, cluster=False)
    for kind in of_plugins:
        yield _tier(settings, kind)


def _tier(settings: Settings, kind: TierKind) -> Finding:
    from kvstitch.kvstore import TierError  # imports torch

    tier = load_object(kind.make)(settings.worker(Path(), ""), False)
    try:
        tier.start()
        tier.read_header("0" * 32)
    except TierError as error:
        return fail(kind.name, f"it cannot be read: {error}",
                    f"mend {kind.name}'s settings or credentials; without it serving goes on "
                    "from the other tiers")  # fmt: skip
    finally:
        tier.close()
    return ok(kind.name, "it answers")


def _redis(url: str, settings: Settings, *, cluster: bool) -> Iterator[Finding]:
    where = _shown(url)
    patience = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
    try:
        with redis.Redis.from_url(url, **patience) as server:
            facts: dict[str, Any] = {}
            for section in ("server", "memory", "cluster"):  # one at a time until Redis 7
                facts |= server.info(section)
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
    if tuple(int(n) for n in version.split(".")[:2] if n.isdigit()) < OLDEST_REDIS:
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


def check_service(client: Client, url: str) -> Iterator[Finding]:
    """Check the service at `url`; it is not an error if none runs there."""
    try:
        status = client.status()
        if "state" not in status:
            raise errors.UnexpectedResponse(f"{url} has another /status")
    except errors.UnexpectedResponse:
        yield warn(CHECK, f"what answers at {url} is not kvstitch", "give another --url or --port")
    except (errors.ServiceError, errors.TimedOut) as error:
        yield warn(CHECK, f"{url} runs, but does not tell its status: {error}",
                   "give --api-key of a key with the scope metrics")  # fmt: skip
    except errors.ConnectionFailed:
        yield ok(CHECK, f"none answers at {url}; `kvstitch serve` starts one")
    else:
        yield _state(url, status)
        yield from _parts(status)


def status_of(client: Client) -> dict[str, Any] | None:
    """Return the status of a service that is ready; None if none is there, or tells it."""
    with contextlib.suppress(errors.KvstitchError):
        status = client.status()
        return status if status.get("model") and status.get("state") == "ready" else None
    return None


def memory(status: dict[str, Any]) -> Finding:
    """Say what the memory of a service that runs is for, as far as it tells."""
    model, tier = status["model"], status["tiers"].get("memory", {})
    pool = (status["worker"]["pool_tokens"] or 0) * model["kv_bytes_per_token"]
    room = tier.get("capacity_bytes", 0.0) - tier.get("used_bytes", 0.0)
    free = resources.free_memory()
    said = f"of {model['id']}, which runs: KV pool {size(pool)}, memory tier " + (
        f"{size(tier.get('used_bytes', 0.0))} of {size(tier.get('capacity_bytes', 0.0))}"
    )
    said += "" if free is None else f"; {size(free)} is free here"
    if free is None or room <= free:
        return ok("memory", said)
    return warn("memory", f"{said}, and the tier may still grow by {size(room)}",
                "restart it with a lower --memory-tier-mib, or end other programs")  # fmt: skip


def _state(url: str, status: dict[str, Any]) -> Finding:
    if status["state"] != "ready":
        return fail(CHECK, f"{url} is not ready: {status['reason']}",
                    "wait if it is loading; else its log says why")  # fmt: skip
    if status["version"] != __version__:
        return warn(CHECK, f"{url} is version {status['version']}, this is {__version__}",
                    "restart it, or use its own command line")  # fmt: skip
    model = status["model"]
    return ok(CHECK, f"{url} is ready: {model['id']}, {model['dtype']} on {model['device']}")


def _parts(status: dict[str, Any]) -> Iterator[Finding]:
    for name, tier in sorted(status["tiers"].items()):
        if not tier.get("healthy", 1):
            yield fail(CHECK, f"its tier {name} does not answer",
                       "bring it back; the service tries again by itself")  # fmt: skip
    jobs = (status["corpus"] or {}).get("jobs", {})
    if bad := {state: jobs[state] for state in ("failed", "dead") if jobs.get(state)}:
        what = ", ".join(f"{n} {state}" for state, n in bad.items())
        yield warn(CHECK, f"jobs: {what}", "kvstitch jobs list --state failed (or dead)")
    free = status["worker"]["pool_free"]
    if free is not None and free < 0.05:
        yield warn(CHECK, "its KV pool is nearly full: requests wait",
                   "lower --max-running, or raise KVSTITCH_POOL_TOKENS")  # fmt: skip
