"""What is known of every worker, and what a request would take at each, in seconds:

    backlog + Σ_documents min(load from the best tier at the worker, compute) + question + decode

A column per quantity, rows are workers by their numbers: with a thousand workers, a walk over their
objects for every request takes longer than the sums. `router` compares them.

A worker learns how fast it is by what it is sent. One that seems slow, by a guess or by its first
prompts, would never be sent anything, and seem slow for ever. So the speeds of a worker that was
sent little, or nothing for a while, count as the usual ones, unless they are better.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kvstitch.service.messages.replies import WorkerLoad

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# Assumed seconds of a read and of a byte from a slower tier that a worker has never read.
UNKNOWN_TIER = (2e-4, 1 / 300e6)
_UNUSED = (np.inf, 0.0)  # of a tier that a worker does not have: never the fastest
# What a worker says of its speed is believed after so many requests, and as long as there was one
# in so many seconds.
TRIALS = 8
STALE_S = 30.0


class Backlog:
    """Seconds of work that one worker has, known between its reports too.

        backlog = what it reported, less the time since │ + what it was sent and has not counted yet

    So a burst of requests that arrives between two reports does not go to one worker.

    Attributes:
        idle_at: When it will have done what it reported and was sent, if it began with the first.
        uncounted_s: Seconds of what it was sent and has not counted yet: time takes nothing of it.
    """

    __slots__ = ("_clock", "_sent", "_uncounted", "idle_at", "uncounted_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin anew for a worker that is new: it has nothing to do, and counts from 0."""
        self._sent = 0
        self._uncounted: deque[tuple[int, float]] = deque()
        self.uncounted_s = 0.0
        self.idle_at = self._clock()

    def sent(self, seconds: float) -> None:
        """Note a request that is sent to the worker and expected to take so long."""
        self._sent += 1
        self._uncounted.append((self._sent, seconds))
        self.uncounted_s += seconds
        self.idle_at += seconds

    def reported(self, seconds: float, received: int) -> None:
        """Note a report of the backlog, in which the first `received` requests count."""
        while self._uncounted and self._uncounted[0][0] <= received:
            self._uncounted.popleft()
        self.uncounted_s = sum(uncounted for _, uncounted in self._uncounted)
        self.idle_at = self._clock() + seconds + self.uncounted_s

    @property
    def seconds(self) -> float:
        return max(self.uncounted_s, self.idle_at - self._clock())


class Speeds(NamedTuple):
    """How fast workers are believed to be, each `[workers]`."""

    token_s: Floats
    overhead_s: Floats
    step_s: Floats
    step_sequence_s: Floats


class WorkerTable:
    """What is known of the workers of one pool: members write it, the router reads it.

    Args:
        clock: that of the workers' backlogs, in seconds.

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
        self._sent_at: Floats = np.zeros(0)
        self._speeds: Floats = np.zeros((4, 0))
        self._token_bytes: Floats = np.zeros(0)
        self._tiers: Floats = np.zeros((1, 2, 0))  # seconds of a read, and of a byte
        self._backlogs: Floats = np.zeros((2, 0))

    def __len__(self) -> int:
        return len(self.in_flight)

    def add(self, number: int) -> None:
        """Add a worker of this number, of which nothing is known yet."""
        if (more := number + 1 - len(self)) > 0:
            self.loads += [WorkerLoad()] * more
            self.in_flight = np.pad(self.in_flight, (0, more))
            self.chosen = np.pad(self.chosen, (0, more))
            self._sent_at = np.pad(self._sent_at, (0, more), constant_values=-np.inf)
            self._speeds = np.pad(self._speeds, ((0, 0), (0, more)))
            self._token_bytes = np.pad(self._token_bytes, (0, more))
            self._tiers = np.pad(self._tiers, ((0, 0), (0, 0), (0, more)))
            self._backlogs = np.pad(self._backlogs, ((0, 0), (0, more)))
        self.set_load(number, WorkerLoad())

    def set_load(self, number: int, load: WorkerLoad) -> None:
        """Note how fast a worker says it is."""
        self.loads[number] = load
        self._speeds[:, number] = (load.token_s, load.overhead_s, load.step_s, load.step_sequence_s)
        self._token_bytes[number] = load.token_bytes
        tiers = list(load.tiers.values()) or [UNKNOWN_TIER]
        if (more := len(tiers) - len(self._tiers)) > 0:
            unused = np.empty((more, 2, len(self)))
            unused[:] = np.array(_UNUSED)[:, None]
            self._tiers = np.concatenate([self._tiers, unused])
        self._tiers[:, :, number] = tiers + [_UNUSED] * (len(self._tiers) - len(tiers))

    def sent(self, number: int) -> None:
        """Note that a worker is sent a request."""
        self.chosen[number] += 1
        self._sent_at[number] = self._clock()

    def set_backlog(self, number: int, backlog: Backlog) -> None:
        """Note a worker's backlog, after it has reported or was sent something."""
        self._backlogs[:, number] = backlog.uncounted_s, backlog.idle_at

    @property
    def backlog_s(self) -> Floats:
        """Seconds of work that each has now `[workers]`."""
        uncounted_s, idle_at = self._backlogs
        now: Floats = np.maximum(uncounted_s, idle_at - self._clock())
        return now

    def speeds(self) -> Speeds:
        """Return what workers report; if not believed, no worse than the others' median."""
        tried = (self._sent_at > self._clock() - STALE_S) & (self.chosen >= TRIALS)
        if tried.all() or not tried.any():
            return Speeds(*self._speeds)
        usual = np.median(self._speeds[:, tried], axis=1)[:, None]
        return Speeds(*np.where(tried, self._speeds, np.minimum(self._speeds, usual)))

    def read_s(self, tokens: Floats) -> Floats:
        """Return seconds `[documents, workers]` to read tokens `[documents, 1]` of a slow tier."""
        nbytes = tokens * self._token_bytes
        found: Floats = np.minimum.reduce([read_s + nbytes * b for read_s, b in self._tiers])
        return found


Place = Literal["memory", "slow", "nowhere"]
"""Where a worker finds a chunk: in its memory tier, in a slower tier, or not at all."""

# How much longer prefill takes at a worker that has other requests, as its planner assumes.
CROWDED = 2.0
# Share of a document's computing that is charged to workers other than its home, where no worker
# holds it. What one worker holds need not be held by another; so much waiting is that worth.
AWAY = 0.1


@dataclass(frozen=True)
class Work:
    """What a prompt asks for, whichever worker does it."""

    names: Sequence[bytes]  # of its documents' chunks
    documents: Sequence[int]  # tokens of each
    question: int = 0  # tokens
    answer: float = 0.0  # tokens that it is expected to have
    repair: float = 0.0  # share of a stored document's tokens that the method computes anew
    system: int = 0  # tokens of S
    beginnings: Sequence[bytes] = field(default=(), repr=False)  # `directory.prompt_beginnings`


class Costs(NamedTuple):
    """Seconds at each worker, by what they are spent on, each `[workers]`."""

    backlog_s: Floats
    prefill_s: Floats
    decode_s: Floats
    away_s: Floats

    @property
    def total_s(self) -> Floats:
        total: Floats = self.backlog_s + self.prefill_s + self.decode_s + self.away_s
        return total


def document_s(compute_s: Floats | float, read_s: Floats | float, repair: float) -> Floats:
    """Return the seconds until documents' KV is in place: read and repaired, or computed."""
    in_place: Floats = np.minimum(repair * compute_s + read_s, compute_s)
    return in_place


def costs(
    work: Work,
    table: WorkerTable,
    *,
    held: Bools,
    places: Sequence[Place],
    away: Bools,
    reused: Floats,
) -> Costs:
    """Return what a prompt takes at each worker."""
    crowd = np.where(table.in_flight > 0, CROWDED, 1.0)
    speeds = table.speeds()
    token_s = speeds.token_s * crowd
    overhead_s = speeds.overhead_s * crowd
    tokens = np.array(work.documents, np.float64)[:, None]
    compute_s = tokens * token_s
    read_s = np.zeros_like(compute_s)
    slow = [document for document, place in enumerate(places) if place == "slow"]
    cold = [document for document, place in enumerate(places) if place == "nowhere"]
    if slow:
        read_s[slow] = np.where(held[slow], 0.0, table.read_s(tokens[slow]))
    if cold:
        read_s[cold] = np.where(held[cold], 0.0, np.inf)
    prefill_s = document_s(compute_s, read_s, work.repair).sum(axis=0)
    prefill_s += overhead_s + work.question * token_s
    rest = np.maximum(1.0, sum(work.documents) + work.question - reused)
    rest_s = overhead_s + rest * token_s
    prefill_s = np.where(reused > 0, np.minimum(rest_s, prefill_s), prefill_s)
    step_s = speeds.step_s + speeds.step_sequence_s * (table.in_flight + 1)
    away_s = AWAY * (compute_s * away).sum(axis=0)
    return Costs(table.backlog_s, prefill_s, work.answer * step_s, away_s)
