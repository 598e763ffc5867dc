"""Reading some blocks of a chunk from tiers in order. Knows no bytes and writes nothing."""

import time
from collections.abc import Sequence

from kvstore.fault_tolerant_tier import BlocksRead, FaultTolerantTier
from kvstore.format.chunk_blocks import BlockSelection
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.read_outcomes import BadBlock, BlocksOutcome, ReadProblem


def read_blocks(
    tiers: Sequence[FaultTolerantTier],
    key: str,
    selection: BlockSelection,
    expect: ChunkSpec | None,
) -> BlocksOutcome:
    """The blocks from the first tier that has them all sound, else from the best copy.

    Raises:
        ChunkSpecError: the chunk has no such layer or block.
    """
    started = time.perf_counter()
    problems: list[ReadProblem] = []
    bad: list[BadBlock] = []
    loaded: dict[str, int] = {}
    best: tuple[str, BlocksRead] | None = None
    for guarded in tiers:
        attempt = guarded.read_blocks(key, selection, expect)
        if attempt.problem is not None:
            problems.append((guarded.name, attempt.problem))
        read = attempt.value
        if read is None:
            continue
        loaded[guarded.name] = read.nbytes
        bad.extend(BadBlock(guarded.name, layer, block) for layer, block in read.bad)
        if best is None or read.blocks.count > best[1].blocks.count:
            best = guarded.name, read
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
