"""Which sequence does what next: three queues and their order.

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
MAX_PREFILLING = 4


class Scheduler:
    """Queues: waiting (not started, in order of arrival), prefilling, running."""

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.prefilling and not self.running

    @property
    def active(self) -> list[Sequence]:
        return [*self.waiting, *self.prefilling, *self.running]

    @property
    def next_prefill(self) -> Sequence | None:
        """The prefill that goes on next; the first, if all wait for their chunks."""
        ready = (sequence for sequence in self.prefilling if not sequence.blocked)
        return next(ready, self.prefilling[0] if self.prefilling else None)

    def add(self, sequence: Sequence) -> None:
        """Raises Overloaded when the queue is full."""
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests are waiting already: try again later, "
                "or raise KVSTITCH_MAX_WAITING",
                retry_after_s=1.0,
            )
        self.waiting.append(sequence)

    def next_to_start(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Takes the first sequence that can start out of the queue."""
        sequence = self.can_start(fits)
        if sequence is not None:
            self.waiting.remove(sequence)
            self.prefilling.append(sequence)
        return sequence

    def can_start(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """The first sequence that can start, if every prefill under way waits and there is room
        to run it.

        One of whose chunks nothing is known yet is overtaken; one that does not fit is not.
        """
        if len(self.running) + len(self.prefilling) >= self._max_running:
            return None
        if len(self.prefilling) >= MAX_PREFILLING or any(not s.blocked for s in self.prefilling):
            return None
        for sequence in self.waiting:
            if sequence.loaded:
                return sequence if fits(sequence) else None
        return None

    def start_running(self, sequence: Sequence) -> None:
        """Its prefill gave the first token."""
        self.prefilling.remove(sequence)
        self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence is finished, failed or aborted, wherever it was."""
        for queue in (self.waiting, self.prefilling, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def find(self, request_id: str) -> Sequence | None:
        return next((s for s in self.active if s.id == request_id), None)
