"""Background writes of all tiers: a queue for each, so a slow tier holds up no other."""

import time
from collections.abc import Collection, Sequence

from kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstore.write_behind import Item, QueueLimits, WriteBehindQueue


class BackgroundWrites:
    """The queues of the tiers.

    Each thread also tries the failed deletes of its tier again.

    Args:
        tiers: all tiers of the store. Memory needs no queue.
        limits: bounds of each queue. A chunk that waits in two queues is in memory once.
    """

    def __init__(self, tiers: Sequence[FaultTolerantTier], limits: QueueLimits) -> None:
        self._limits = limits
        self._queues = {
            tier: WriteBehindQueue(limits, tier.retry_deletes)
            for tier in tiers
            if tier.kind != "memory"
        }

    @property
    def dropped(self) -> int:
        """Writes dropped since the start."""
        return sum(queue.dropped for queue in self._queues.values())

    @property
    def pending(self) -> int:
        """Writes waiting or under way."""
        return sum(queue.pending for queue in self._queues.values())

    def start(self) -> None:
        for queue in self._queues.values():
            queue.start()

    def close(self) -> None:
        """Write as much as possible within the limit of one queue; drop and count the rest."""
        give_up_at = time.monotonic() + self._limits.drain_s
        for queue in self._queues.values():
            queue.close(max(give_up_at - time.monotonic(), 0.0))

    def submit(self, tier: FaultTolerantTier, key: str, item: Item) -> None:
        """Queue a write unless the same chunk is already waiting for that tier."""
        self._queues[tier].submit(tier, key, item)

    def holds(self, tier: FaultTolerantTier, key: str) -> bool:
        """Whether a write of that chunk is waiting or under way."""
        queue = self._queues.get(tier)
        return queue is not None and queue.holds(tier, key)

    def discard(self, keys: Collection[str]) -> None:
        """Drop the waiting writes of these keys, and wait for those that are under way."""
        for queue in self._queues.values():
            queue.discard(keys)

    def discard_all(self) -> None:
        """Drop all waiting writes, and wait for those that are under way."""
        for queue in self._queues.values():
            queue.discard_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all queues are empty; False when `timeout` (seconds) ran out first."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        # All are asked, also after one that did not become empty in time.
        empty = [
            queue.flush(None if give_up_at is None else max(give_up_at - time.monotonic(), 0.0))
            for queue in self._queues.values()
        ]
        return all(empty)
