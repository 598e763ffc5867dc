"""Opens the store of a worker: the chunks' tiers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from encryption.keyring import Keyring
from kvstore import MemoryTier, RedisTier, S3Place, S3Tier, SsdTier, TieredStore
from kvstore.tiers.base import Tier
from service.shared.worker_settings import WorkerSettings
from service.worker.server.leases import take_number


def open_store(
    settings: WorkerSettings,
    opened: ExitStack,
    *,
    pin: bool,
    on_change: Callable[[str, bool], None],
    keys: Keyring,
) -> TieredStore:
    """Open the store of chunks."""
    tiers = _tiers(settings, pin, on_change)
    wanted = settings.write_tiers.split(",") if settings.write_tiers else None
    written = [t.name for t in tiers if t.kind == "memory" or wanted is None or t.name in wanted]
    store = TieredStore(tiers, write_to=written, write_through=settings.write_through, keys=keys)
    return opened.enter_context(store)


def _tiers(
    settings: WorkerSettings, pin: bool, on_change: Callable[[str, bool], None]
) -> list[Tier]:
    """Return the store's tiers, fastest first, of which memory takes every computed chunk."""
    chosen: list[Tier] = []
    if settings.memory_tier_bytes:
        chosen.append(MemoryTier(settings.memory_tier_bytes, on_change=on_change))
    if settings.kv_dir:
        # Answered prompts that an earlier release kept there: deletions would not reach them.
        shutil.rmtree(Path(settings.kv_dir) / ".prompts", ignore_errors=True)
        member = settings.number if settings.workers > 1 else None
        if settings.shared:
            member = take_number(Path(settings.kv_dir))
        chosen.append(SsdTier(settings.kv_dir, settings.ssd_tier_bytes, pin=pin, member=member))
    if settings.redis_url:
        chosen.append(RedisTier(settings.redis_url, ttl_s=settings.redis_ttl_s or None, pin=pin))
    if settings.s3_url:
        place = S3Place(settings.s3_url, settings.s3_endpoint, settings.s3_region)
        chosen.append(S3Tier(place, pin=pin))
    return chosen
