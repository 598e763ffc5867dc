"""Extra tensors of chunks over several tiers: which tier gets them, which one gives them.

They live beside the chunk in disk and shared tiers and go with it; the memory tier may keep them
without it, because whoever wants them reads chunks block by block. Knows no bytes.
"""

import time
from collections.abc import Sequence
from functools import partial

from kvstore.deletion_epoch import DeletionEpoch
from kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstore.format.extra_tensors import EncodedExtra
from kvstore.read_outcomes import ExtraOutcome
from kvstore.write_behind import WriteBehindQueue


def put_extra(
    tiers: Sequence[FaultTolerantTier],
    writer: WriteBehindQueue,
    purges: DeletionEpoch,
    key: str,
    extra: EncodedExtra,
) -> bool:
    """Memory and disk now, shared tiers in the background; False when no tier has the chunk."""
    since = purges.now()
    queued = [tier for tier in tiers if writer.holds(tier, key)]
    holders = [tier for tier in tiers if tier not in queued and tier.contains([key])]
    if not queued and not holders:
        return False

    def keep() -> None:
        _keep_in_memory(tiers, key, extra)
        for tier in tiers:
            if tier in queued or (tier in holders and tier.kind == "shared"):
                writer.submit(tier, key, extra)

    if not purges.unless_since(since, keep):
        return False
    for tier in holders:
        if tier.kind == "disk":
            tier.put_extra(key, extra)
    return True


def read_extra(
    tiers: Sequence[FaultTolerantTier], purges: DeletionEpoch, key: str, name: str, version: int
) -> ExtraOutcome | None:
    """From the first tier that has sound ones of that version, copied into the memory tier."""
    started = time.perf_counter()
    since = purges.now()
    for position, tier in enumerate(tiers):
        extra = tier.read_extra(key, name, version).value
        if extra is not None:
            purges.unless_since(since, partial(_keep_in_memory, tiers[:position], key, extra))
            seconds = time.perf_counter() - started
            return ExtraOutcome(extra.tensors, tier.name, extra.nbytes, seconds)
    return None


def _keep_in_memory(tiers: Sequence[FaultTolerantTier], key: str, extra: EncodedExtra) -> None:
    for tier in tiers:
        if tier.kind == "memory":
            tier.put_extra(key, extra)
