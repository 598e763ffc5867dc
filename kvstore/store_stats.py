"""What a store has counted, as plain snapshots that map directly to labelled metrics.

    op            outcomes
    read          hit, miss, corrupt, refused, timeout, unavailable, error
    read_blocks   as read; corrupt: some block was bad, or the whole copy was unreadable
    read_extra    as read; refused: written by another version
    block         ok, corrupt: single blocks of one layer that read_blocks verified
    write         ok, rejected (no room), timeout, unavailable, error
    write_extra   as write; absent: the tier does not hold the chunk
    delete, contains, keys, usage     ok, timeout, unavailable, error
scan          corrupt (removed: no whole chunk), refused (removed: another version), foreign
              (skipped: no file of the store): what a tier on disk found when it was started

`unavailable` includes calls that an open circuit breaker turned away.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvstore.tiers.base import TierKind, TierUsage


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
        """The tier of that name.

        Raises:
            KeyError: there is no such tier.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(name)
