"""What a store counted: plain snapshots, ready to become counters {tier, op, outcome}.

    op            outcomes
    read          hit, miss, corrupt, refused, timeout, unavailable, error
    read_blocks   the same; corrupt: some block was bad, or the copy was unreadable
    read_extra    the same; refused: another version
    block         ok, corrupt: blocks (of one layer) that read_blocks verified
    write         ok, rejected (no room), timeout, unavailable, error
    write_extra   the same; absent: the tier does not hold the chunk
    delete, contains, keys, usage     ok, timeout, unavailable, error

``unavailable`` includes calls that an open circuit breaker turned away. Knows no metrics library.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvstore.tiers.base import TierKind, TierUsage


@dataclass(frozen=True)
class TierStats:
    """One tier since start.

    Attributes:
        ops: (op, outcome) to count.
        bytes: op to bytes moved. Writes and whole reads count whole containers when they
            succeed; read_blocks counts what was fetched, headers and bad blocks included.
        seconds: op to seconds spent, failures and verification included.
        healthy: its circuit breaker is closed.
        pending_deletes: keys whose removal failed and is still being retried.
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
    """The whole store since start.

    Attributes:
        tiers: in the order in which they are read.
        new_keys: puts of keys that no tier held.
        already_present: puts of keys that some tier held.
        shared_reads: reads answered by another thread's read of the same key.
        dropped_writes: background writes given up because the queue was full.
        pending_writes: background writes waiting or under way.
    """

    tiers: tuple[TierStats, ...]
    new_keys: int
    already_present: int
    shared_reads: int
    dropped_writes: int
    pending_writes: int

    def tier(self, name: str) -> TierStats:
        """Raises KeyError: no such tier."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(name)

    def counters(self) -> Iterator[tuple[str, str, str, int]]:
        """(tier, op, outcome, count) of everything counted."""
        for tier in self.tiers:
            for (op, outcome), count in sorted(tier.ops.items()):
                yield tier.name, op, outcome, count
