"""Reads some blocks of a chunk from the tiers, in order. Nothing is written."""

import time
from collections.abc import Sequence

from kvstore.fault_tolerant_tier import BlocksRead, FaultTolerantTier
from kvstore.format.chunk_blocks import BlockSelection
from kvstore.format.chunk_identity import ChunkSpec
from kvstore.read_outcomes import BadBlock, BlocksOutcome, ReadProblem


def read_blocks(
    tiers: Sequence[FaultTolerantTier],
    key: str,
    selection: BlockSelection,
    expect: ChunkSpec | None,
) -> BlocksOutcome:
    """Read from the first tier where all blocks are intact, else take the most complete copy.

    Raises:
        ChunkSpecError: the chunk has no such layer or block.
    """
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


def _missing(read: BlocksRead) -> BlockSelection:
    missing: dict[int, tuple[int, ...]] = {}
    for layer, block in read.bad:
        missing[layer] = (*missing.get(layer, ()), block)
    return missing
