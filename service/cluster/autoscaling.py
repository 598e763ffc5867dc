"""How many workers the backlog asks for. Counts and seconds only; measures and starts nothing.

As Kubernetes' HorizontalPodAutoscaler with an average target: workers × mean backlog / target,
nothing within a tenth of the target, up at once (at most doubled), down only to the most that was
wanted in the last `settle_s`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from service.errors import InvalidSetting

BACKLOG = "kvstitch_backlog_seconds"
TOLERANCE = 0.1


@dataclass
class Autoscaler:
    """Decides from one look to the next.

    Attributes:
        least: Workers that stay whatever happens.
        most: Workers that there may be.
        target_s: Backlog that a worker should have.
        settle_s: How long less must have been wanted before workers are drained.

    Raises:
        InvalidSetting: The numbers contradict each other.
    """

    least: int
    most: int
    target_s: float
    settle_s: float = 300.0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InvalidSetting(f"--min {self.least} must be from 1 to --max {self.most}")
        if self.target_s <= 0:
            raise InvalidSetting("--target-backlog-seconds must be more than 0")

    def begin(self, now: float, count: int) -> None:
        """What is there counts as wanted now: a loop that starts knows no past, and waits."""
        self._wanted.append((now, count))

    def decide(self, now: float, backlogs: Sequence[float], count: int) -> int:
        """How many workers there should be.

        Args:
            now: Seconds, of a clock that only goes forward.
            backlogs: Seconds, one for each worker that is ready.
            count: Workers there are, also those that are not ready yet.
        """
        wanted = count
        if backlogs:
            mean = sum(backlogs) / len(backlogs)
            if abs(mean / self.target_s - 1) > TOLERANCE:
                wanted = math.ceil(sum(backlogs) / self.target_s)
        wanted = min(max(wanted, self.least), self.most)
        self._wanted.append((now, wanted))
        while now - self._wanted[0][0] > self.settle_s:
            self._wanted.popleft()
        if wanted < count:
            # What is loading is not needed any less for being late.
            return min(count, max(number for _, number in self._wanted))
        return min(wanted, max(2 * count, self.least))


def backlogs_in(metrics: str) -> list[float]:
    """The backlog of each worker that one gateway's /metrics tell of.

    Raises:
        ValueError: It is not Prometheus' text format.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == BACKLOG:
                found[sample.labels.get("worker", "")] = sample.value
    return list(found.values())


def busiest(gateways: Sequence[Sequence[float]]) -> list[float]:
    """The backlogs as that gateway sees them that sees the most; each sees all workers."""
    return list(max(gateways, key=sum, default=[]))
