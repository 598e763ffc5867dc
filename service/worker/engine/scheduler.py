"""The scheduler: three queues of sequences, the order in which they are served, and spare time.

First come, first served: a sequence that could start but does not fit into the pool holds back
those behind it, so that short prompts never starve a long one. A sequence reserves KV for its whole
life when it starts, so none fails midway. While a prefill waits for its chunks, the next one may
start; of several prefills, the earliest that need not wait runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kvstitch.service.errors import Overloaded
from kvstitch.service.worker.sequences.sequence import EngineSequence

# Most prefills that are started and not finished; another one starts only while all others wait.
MAX_PREFILLING = 4


class Scheduler:
    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting: deque[EngineSequence] = deque()
        self.prefilling: list[EngineSequence] = []
        self.running: list[EngineSequence] = []
        self.handed: list[EngineSequence] = []  # another engine answers them

    @property
    def idle(self) -> bool:
        """Whether nothing is left to compute here."""
        return not self.waiting and not self.prefilling and not self.running

    @property
    def active(self) -> list[EngineSequence]:
        return [*self.waiting, *self.prefilling, *self.running, *self.handed]

    @property
    def next_prefill(self) -> EngineSequence | None:
        """The prefill to run next; the first one, if all wait for their chunks."""
        ready = (sequence for sequence in self.prefilling if not sequence.blocked)
        return next(ready, self.prefilling[0] if self.prefilling else None)

    def add(self, sequence: EngineSequence) -> None:
        """Add a sequence to the waiting ones."""
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests are waiting already: try again later, "
                "or raise KVSTITCH_MAX_WAITING",
                retry_after_s=1.0,
            )
        self.waiting.append(sequence)

    def next_to_start(self, fits: Callable[[EngineSequence], bool]) -> EngineSequence | None:
        """Move the first sequence that can start to `prefilling`, and return it."""
        sequence = self.can_start(fits)
        if sequence is not None:
            self.waiting.remove(sequence)
            self.prefilling.append(sequence)
        return sequence

    def can_start(self, fits: Callable[[EngineSequence], bool]) -> EngineSequence | None:
        """Return the first sequence that can start, if there is room and all prefills wait."""
        if len(self.running) + len(self.prefilling) >= self._max_running:
            return None
        if len(self.prefilling) >= MAX_PREFILLING or any(not s.blocked for s in self.prefilling):
            return None
        for sequence in self.waiting:
            if sequence.loaded:
                return sequence if fits(sequence) else None
        return None

    def start_running(self, sequence: EngineSequence) -> None:
        """Move a sequence whose prefill is finished to `running`, or to `handed`."""
        self.prefilling.remove(sequence)
        (self.handed if sequence.asked.request.hand_over else self.running).append(sequence)

    def start_over(self, sequence: EngineSequence) -> None:
        """Move a running sequence back to `prefilling`."""
        self.running.remove(sequence)
        self.prefilling.append(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Remove a sequence that has finished, failed or been aborted from its queue."""
        for queue in (self.waiting, self.prefilling, self.running, self.handed):
            if sequence in queue:
                queue.remove(sequence)

    def find(self, request_id: str) -> EngineSequence | None:
        return next((s for s in self.active if s.id == request_id), None)


# Share of a decode step's time that prefill may take before the next decode step. Not all of it,
# because a prefill step may take longer than the one before it.
PREFILL_SHARE = 0.85
# Share of the time that idle work gets while requests keep the engine busy.
IDLE_WORK_SHARE = 0.05


class StepBudget:
    """Divides time between decode steps, prefill steps and idle work."""

    def __init__(self) -> None:
        self._decode_s = 0.0
        self._step_s = 0.0
        self._used_s = 0.0
        self._owed_s = 0.0
        self._idle_step_s = 0.0

    def decoded(self, seconds: float) -> None:
        """Note how long a decode step took; 0 if there was nothing to decode."""
        self._decode_s = seconds
        self._used_s = 0.0
        self._owe(seconds)

    def prefilled(self, seconds: float) -> None:
        """Note how long a prefill step took."""
        self._used_s += seconds
        self._step_s = seconds
        self._owe(seconds)

    @property
    def prefill_goes_on(self) -> bool:
        """Whether another prefill step like the last one fits before the next decode step."""
        return self._used_s + self._step_s <= PREFILL_SHARE * self._decode_s

    @property
    def idle_work_is_due(self) -> bool:
        """Whether idle work gets a step even if there are requests to work on."""
        return self._owed_s > 0 and self._owed_s >= self._idle_step_s

    def idle_work_stepped(self, seconds: float) -> None:
        """Note how long a step of idle work took."""
        self._idle_step_s = seconds
        self._owed_s = max(0.0, self._owed_s - seconds)

    def _owe(self, seconds: float) -> None:
        # Bounded, so that time without any idle work is not saved up.
        self._owed_s = min(self._owed_s + seconds * IDLE_WORK_SHARE, max(self._idle_step_s, 1e-9))


log = logging.getLogger("kvstitch.engine")


class Job(Protocol):
    """Work that is done one short step at a time."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do right now."""

    def advance(self) -> None:
        """Run one step."""

    def fail_current(self, error: Exception) -> None:
        """End what the last step worked on, because it raised this error."""


class IdleWork:
    """Takes turns between steps of several jobs; none waits for another to finish."""

    def __init__(self, *jobs: Job | None) -> None:
        self._jobs = deque(job for job in jobs if job is not None)  # whose turn it is first

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do right now."""
        return all(job.idle for job in self._jobs)

    def advance(self) -> None:
        """Run one step of one of them; an error ends the chunk or check that raised it."""
        job = next((job for job in self._jobs if not job.idle), None)
        if job is None:
            return
        self._jobs.remove(job)
        self._jobs.append(job)
        try:
            job.advance()
        except Exception as error:
            log.error("%s failed", type(job).__name__, exc_info=error)
            job.fail_current(error)
