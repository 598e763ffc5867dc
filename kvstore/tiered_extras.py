"""Writes and reads extra tensors of a chunk across all tiers.

Disk and shared tiers keep extra tensors beside the chunk and delete them with it. The memory tier
may keep them without the chunk, because their readers fetch chunks block by block and so never
bring the whole chunk into memory.
"""

import time
from collections.abc import Collection, Sequence
from functools import partial

from kvstore.background_writes import BackgroundWrites
from kvstore.deletion_epoch import DeletionEpoch
from kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstore.format.extra_tensors import EncodedExtra
from kvstore.read_outcomes import ExtraOutcome


def put_extra(
    tiers: Sequence[FaultTolerantTier],
    writer: BackgroundWrites,
    deletions: DeletionEpoch,
    key: str,
    extra: EncodedExtra,
    *,
    write_to: Collection[str],
) -> bool:
    """Write to memory and disk now, and to shared tiers in the background.

    Tiers that are not in `write_to`, by name, are left out, memory excepted.

    Returns:
        False when no tier holds the chunk, or when a delete came in between.
    """
    epoch = deletions.current()
    queued = [tier for tier in tiers if writer.holds(tier, key)]
    holders = [tier for tier in tiers if tier not in queued and tier.contains([key])]
    if not queued and not holders:
        return False

    def keep() -> None:
        _keep_in_memory(tiers, key, extra)
        for tier in tiers:
            shared = tier in holders and tier.kind == "shared" and tier.name in write_to
            if tier in queued or shared:
                writer.submit(tier, key, extra)

    if not deletions.run_if_unchanged(epoch, keep):
        return False
    for tier in holders:
        if tier.kind == "disk" and tier.name in write_to:
            tier.put_extra(key, extra)
    return True


def read_extra(
    tiers: Sequence[FaultTolerantTier], deletions: DeletionEpoch, key: str, name: str, version: int
) -> ExtraOutcome | None:
    """Read from the first tier with an intact copy of that version; copy it into memory."""
    started = time.perf_counter()
    epoch = deletions.current()
    for position, tier in enumerate(tiers):
        extra = tier.read_extra(key, name, version).value
        if extra is not None:
            keep = partial(_keep_in_memory, tiers[:position], key, extra)
            deletions.run_if_unchanged(epoch, keep)
            seconds = time.perf_counter() - started
            return ExtraOutcome(extra.tensors, tier.name, extra.nbytes, seconds)
    return None


def _keep_in_memory(tiers: Sequence[FaultTolerantTier], key: str, extra: EncodedExtra) -> None:
    for tier in tiers:
        if tier.kind == "memory":
            tier.put_extra(key, extra)
