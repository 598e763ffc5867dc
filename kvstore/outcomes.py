"""What reads of a store return, and what the store counts.

The counters map directly to labelled metrics:

    op            outcomes
    read          hit, miss, corrupt, refused, locked, timeout, unavailable, error
    read_blocks   as read; corrupt: some block was bad, or the whole copy was unreadable
    read_extra    as read; refused: written by another version
    block         ok, corrupt: single blocks of one layer that read_blocks verified
    write         ok, rejected (no room), locked, timeout, unavailable, error
    write_extra   as write; absent: the tier does not hold the chunk
    delete, contains, keys, usage     ok, timeout, unavailable, error
    scan          corrupt (removed: no whole chunk), refused (removed: another version), foreign
                  (skipped: no file of the store): what a tier on disk found when it was started

`locked`: it is sealed under a key that is not here, or there is none to seal it with. The copy
stays. `unavailable` includes calls that an open circuit breaker turned away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvstitch.kvstore.format.chunk import BlockSelection, EncodedBlocks, EncodedChunk
from kvstitch.kvstore.tiers.base import TierKind, TierUsage

ReadProblem = tuple[str, str]
"""(tier name, kind); the kinds are corrupt, refused, locked, timeout, unavailable and error."""


@dataclass(frozen=True)
class ReadOutcome:
    """The result of reading a whole chunk."""

    chunk: EncodedChunk | None
    tier: str | None
    nbytes: int
    seconds: float
    problems: tuple[ReadProblem, ...] = ()


@dataclass(frozen=True)
class BadBlock:
    """A block of one layer whose bytes in one tier differ from what was written."""

    tier: str
    layer: int
    block: int


@dataclass(frozen=True)
class BlocksOutcome:
    """The result of reading some blocks."""

    blocks: EncodedBlocks | None
    tier: str | None
    missing: BlockSelection
    seconds: float
    problems: tuple[ReadProblem, ...] = ()
    bad: tuple[BadBlock, ...] = ()
    loaded: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes moved from all tiers."""
        return sum(self.loaded.values())


@dataclass(frozen=True)
class ExtraOutcome:
    """Extra tensors that were found."""

    tensors: Mapping[str, Tensor]
    tier: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class TierStats:
    """What one tier counted since the start."""

    name: str
    kind: TierKind
    ops: Mapping[tuple[str, str], int]
    bytes: Mapping[str, int]
    seconds: Mapping[str, float]
    usage: TierUsage
    healthy: bool
    pending_deletes: int

    def count(self, op: str, outcome: str) -> int:
        return self.ops.get((op, outcome), 0)


@dataclass(frozen=True)
class StoreStats:
    """What the whole store counted since the start."""

    tiers: tuple[TierStats, ...]
    new_keys: int
    already_present: int
    dropped_writes: int
    pending_writes: int

    def tier(self, name: str) -> TierStats:
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(name)
