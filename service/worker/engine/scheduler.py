"""Which sequence does what next: three queues and their order, and for how long. Policy only, no
tensors.

First come, first served: a sequence that is loaded but does not fit into the pool holds back those
behind it, so that a long prompt is never starved by short ones. A sequence reserves KV for its
whole life when it starts, so none fails midway. A prefill that waits for its chunks lets the next
one start; the earliest that can go on does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from service.errors import Overloaded
from service.worker.sequences.sequence import Sequence

# Prompts whose prefill has started, most of them waiting for their chunks.
MAX_OPENED = 4


class Scheduler:
    """Queues: waiting (not started, in order of arrival), opened (in prefill), running."""

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting: deque[Sequence] = deque()
        self.opened: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.opened and not self.running

    @property
    def active(self) -> list[Sequence]:
        return [*self.waiting, *self.opened, *self.running]

    @property
    def prefilling(self) -> Sequence | None:
        """The prefill that goes on next; the first, if all wait for their chunks."""
        ready = (sequence for sequence in self.opened if not sequence.blocked)
        return next(ready, self.opened[0] if self.opened else None)

    def add(self, sequence: Sequence) -> None:
        """Raises Overloaded when the queue is full."""
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests are waiting already: try again later, "
                "or raise KVSTITCH_MAX_WAITING",
                retry_after_s=1.0,
            )
        self.waiting.append(sequence)

    def next_to_open(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Takes the first sequence that can start out of the queue."""
        sequence = self.can_open(fits)
        if sequence is not None:
            self.waiting.remove(sequence)
            self.opened.append(sequence)
        return sequence

    def can_open(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """The first sequence that can start, if every prefill under way waits and there is room
        to run it.

        One of whose chunks nothing is known yet is overtaken; one that does not fit is not.
        """
        if len(self.running) + len(self.opened) >= self._max_running:
            return None
        if len(self.opened) >= MAX_OPENED or any(not s.blocked for s in self.opened):
            return None
        for sequence in self.waiting:
            if sequence.loaded:
                return sequence if fits(sequence) else None
        return None

    def start_running(self, sequence: Sequence) -> None:
        """Its prefill gave the first token."""
        self.opened.remove(sequence)
        self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence is finished, failed or aborted, wherever it was."""
        for queue in (self.waiting, self.opened, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def find(self, request_id: str) -> Sequence | None:
        return next((s for s in self.active if s.id == request_id), None)


# Of a decode step's time that prefill may take before the next one: steps are not equally long, and
# one that is longer than the last would go beyond it.
PREFILL_SHARE = 0.85
# Share of the time that the background lane gets while requests keep the engine busy.
LANE_SHARE = 0.05


class StepBudget:
    """How much of each kind of work one engine step does.

    While sequences decode, prefill gets about as long as the decode step took: the steps that fit,
    but at least one. So a prompt of any length at most doubles their TPOT, as long as one step of
    it is no longer than a decode step. The background lane gets what is spare, and `LANE_SHARE` of
    the time when nothing ever is.
    """

    def __init__(self) -> None:
        self._decode_s = 0.0
        self._step_s = 0.0
        self._used_s = 0.0
        self._owed_s = 0.0
        self._lane_step_s = 0.0

    def decoded(self, seconds: float) -> None:
        """A decode step is over; 0: nobody decodes."""
        self._decode_s = seconds
        self._used_s = 0.0
        self._owe(seconds)

    def prefilled(self, seconds: float) -> None:
        """A step of a prefill is over."""
        self._used_s += seconds
        self._step_s = seconds
        self._owe(seconds)

    @property
    def prefill_goes_on(self) -> bool:
        """Whether another step like the last one fits before the next decode step."""
        return self._used_s + self._step_s <= PREFILL_SHARE * self._decode_s

    @property
    def idle_work_is_due(self) -> bool:
        return self._owed_s > 0 and self._owed_s >= self._lane_step_s

    def idle_work_stepped(self, seconds: float) -> None:
        self._lane_step_s = seconds
        self._owed_s = max(0.0, self._owed_s - seconds)

    def _owe(self, seconds: float) -> None:
        # Bounded: a lane that had nothing to do does not save up.
        self._owed_s = min(self._owed_s + seconds * LANE_SHARE, max(self._lane_step_s, 1e-9))
