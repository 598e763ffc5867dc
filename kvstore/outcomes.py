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

from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_blocks import BlockSelection, EncodedBlocks
from kvstore.tiers.base import TierKind, TierUsage

ReadProblem = tuple[str, str]
"""(tier name, kind); the kinds are corrupt, refused, locked, timeout, unavailable and error."""


@dataclass(frozen=True)
class ReadOutcome:
    """The result of reading a whole chunk.

    Attributes:
        chunk: the verified chunk, or None on a miss.
        tier: name of the tier it came from.
        nbytes: bytes of the whole chunk file, header included; 0 on a miss.
        seconds: time of the whole read, verification and failed tiers included.
        problems: what went wrong on the way, in order; a plain miss is not a problem.
    """

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
    """The result of reading some blocks.

    Attributes:
        blocks: the intact blocks, all from the same copy of the chunk; None on a miss.
        tier: name of the tier they came from.
        missing: blocks to recompute by layer: they were requested and the chosen copy has no
            intact one. On a miss this is everything that was requested.
        seconds: as in `ReadOutcome`.
        problems: as in `ReadOutcome`.
        bad: every bad block that was seen, also if another tier had an intact one.
        loaded: bytes moved by tier, headers and bad blocks included.
    """

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
    """Extra tensors that were found.

    Attributes:
        tensors: by name, in host memory that other readers share: never write into them.
        tier: name of the tier they came from.
        nbytes: bytes of their file, header included.
        seconds: time of the whole read, verification and failed tiers included.
    """

    tensors: Mapping[str, Tensor]
    tier: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class TierStats:
    """What one tier counted since the start.

    Attributes:
        ops: count of calls by (op, outcome).
        bytes: bytes moved by op. Writes and reads of whole chunks count the whole file when they
            succeed; read_blocks counts what was fetched, headers and bad blocks included.
        seconds: seconds spent by op, failures and verification included.
        usage: what the tier holds now.
        healthy: whether its circuit breaker is closed.
        pending_deletes: keys whose deletion failed and is still being retried.
    """

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
    """What the whole store counted since the start.

    Attributes:
        tiers: in the order in which they are read.
        new_keys: puts of keys that no tier held. Asking known chunks in a new order must not
            raise it.
        already_present: puts of keys that some tier held.
        shared_reads: reads answered by another thread's read of the same key.
        dropped_writes: background writes dropped because the queue was full.
        pending_writes: background writes waiting or under way.
    """

    tiers: tuple[TierStats, ...]
    new_keys: int
    already_present: int
    shared_reads: int
    dropped_writes: int
    pending_writes: int

    def tier(self, name: str) -> TierStats:
        """Return the tier of that name.

        Raises:
            KeyError: there is no such tier.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(name)
