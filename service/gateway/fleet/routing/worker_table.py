"""What is known of every worker, a column per quantity: so that a choice reads no worker's object.

With a thousand workers, a walk over their objects for every request takes longer than the sums.
Rows are workers by their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from service.gateway.fleet.routing.backlog import Backlog
from service.gateway.fleet.routing.cost import UNKNOWN_TIER
from service.records import WorkerLoad

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_UNUSED = (np.inf, 0.0)  # of a tier that a worker does not have: never the fastest


class WorkerTable:
    """Of one pool. Members write into it, the router reads.

    Args:
        clock: that of the workers' backlogs.

    Attributes:
        loads: what each reported last.
        in_flight: requests that each worker has `[workers]`.
        chosen: how often each was chosen `[workers]`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.loads: list[WorkerLoad] = []
        self.in_flight: Counts = np.zeros(0, np.int64)
        self.chosen: Counts = np.zeros(0, np.int64)
        self._costs: Floats = np.zeros((5, 0))
        self._tiers: Floats = np.zeros((1, 2, 0))  # seconds of a read, and of a byte
        self._backlogs: Floats = np.zeros((2, 0))

    def __len__(self) -> int:
        return len(self.in_flight)

    def add(self, number: int) -> None:
        """There is a worker of this number, of which nothing is known yet."""
        if (more := number + 1 - len(self)) > 0:
            self.loads += [WorkerLoad()] * more
            self.in_flight = np.pad(self.in_flight, (0, more))
            self.chosen = np.pad(self.chosen, (0, more))
            self._costs = np.pad(self._costs, ((0, 0), (0, more)))
            self._tiers = np.pad(self._tiers, ((0, 0), (0, 0), (0, more)))
            self._backlogs = np.pad(self._backlogs, ((0, 0), (0, more)))
        self.set_load(number, WorkerLoad())

    def set_load(self, number: int, load: WorkerLoad) -> None:
        """A worker says how fast it is."""
        self.loads[number] = load
        self._costs[:, number] = (
            load.token_s,
            load.overhead_s,
            load.step_s,
            load.step_sequence_s,
            load.token_bytes,
        )
        tiers = list(load.tiers.values()) or [UNKNOWN_TIER]
        if (more := len(tiers) - len(self._tiers)) > 0:
            unused = np.empty((more, 2, len(self)))
            unused[:] = np.array(_UNUSED)[:, None]
            self._tiers = np.concatenate([self._tiers, unused])
        self._tiers[:, :, number] = tiers + [_UNUSED] * (len(self._tiers) - len(tiers))

    def set_backlog(self, number: int, backlog: Backlog) -> None:
        """A worker has reported, or was sent something."""
        self._backlogs[:, number] = backlog.uncounted_s, backlog.idle_at

    @property
    def backlog_s(self) -> Floats:
        """Seconds of work that each has now `[workers]`."""
        uncounted_s, idle_at = self._backlogs
        now: Floats = np.maximum(uncounted_s, idle_at - self._clock())
        return now

    @property
    def token_s(self) -> Floats:
        """Seconds to compute a prompt token, at each `[workers]`."""
        found: Floats = self._costs[0]
        return found

    @property
    def overhead_s(self) -> Floats:
        """Seconds of any prefill besides its tokens, at each `[workers]`."""
        found: Floats = self._costs[1]
        return found

    def step_s(self, sequences: Counts) -> Floats:
        """Seconds of a decode step of so many sequences `[workers]`, at each `[workers]`."""
        found: Floats = self._costs[2] + self._costs[3] * sequences
        return found

    def read_s(self, tokens: Floats) -> Floats:
        """Seconds to read as many tokens' KV from the fastest slower tier.

        Args:
            tokens: `[documents, 1]`.

        Returns:
            `[documents, workers]`.
        """
        nbytes = tokens * self._costs[4]
        found: Floats = np.minimum.reduce([read_s + nbytes * b for read_s, b in self._tiers])
        return found
