"""Parts of a chunk across all tiers: reads of blocks; reads and writes of extra tensors.

Disk and shared tiers keep extra tensors beside the chunk and delete them with it. The memory tier
may keep them without the chunk, because their readers fetch chunks block by block and so never
bring the whole chunk into memory.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from kvstitch.kvstore.coordination import DeletionEpoch, WriteBehindQueue
from kvstitch.kvstore.fault_tolerant_tier import BlocksRead, FaultTolerantTier
from kvstitch.kvstore.format.chunk import BlockSelection
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.kvstore.format.extra_tensors import EncodedExtra
from kvstitch.kvstore.outcomes import BadBlock, BlocksOutcome, ExtraOutcome, ReadProblem


def read_blocks(
    tiers: Sequence[FaultTolerantTier],
    key: str,
    selection: BlockSelection,
    expect: ChunkSpec | None,
) -> BlocksOutcome:
    """Read from the first tier where all blocks are intact, else take the most complete copy."""
    started = time.perf_counter()
    problems: list[ReadProblem] = []
    bad: list[BadBlock] = []
    loaded: dict[str, int] = {}
    best: tuple[str, BlocksRead] | None = None
    for tier in tiers:
        result = tier.read_blocks(key, selection, expect)
        if result.problem is not None:
            problems.append((tier.name, result.problem))
        read = result.value
        if read is None:
            continue
        loaded[tier.name] = read.nbytes
        bad.extend(BadBlock(tier.name, layer, block) for layer, block in read.bad)
        if best is None or read.blocks.count > best[1].blocks.count:
            best = tier.name, read
        if not read.bad:
            break
    return BlocksOutcome(
        blocks=best[1].blocks if best else None,
        tier=best[0] if best else None,
        missing=_missing(best[1]) if best else selection,
        seconds=time.perf_counter() - started,
        problems=tuple(problems),
        bad=tuple(bad),
        loaded=loaded,
    )


def put_extra(
    tiers: Sequence[FaultTolerantTier],
    queues: Mapping[FaultTolerantTier, WriteBehindQueue],
    deletions: DeletionEpoch,
    key: str,
    extra: EncodedExtra,
    *,
    write_to: Collection[str],
) -> bool:
    """Write to memory and disk now, and to shared tiers in the background."""
    epoch = deletions.current()
    queued = [tier for tier, queue in queues.items() if queue.holds(key)]
    holders = [tier for tier in tiers if tier not in queued and tier.contains([key])]
    if not queued and not holders:
        return False

    def keep() -> None:
        _keep_in_memory(tiers, key, extra)
        for tier in tiers:
            shared = tier in holders and tier.kind == "shared" and tier.name in write_to
            if tier in queued or shared:
                queues[tier].submit(key, extra)

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


def _missing(read: BlocksRead) -> BlockSelection:
    missing: dict[int, tuple[int, ...]] = {}
    for layer, block in read.bad:
        missing[layer] = (*missing.get(layer, ()), block)
    return missing
