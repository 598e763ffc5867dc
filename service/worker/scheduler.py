"""Which sequence does what next: three queues and their order. Policy only, no tensors.

First come, first served: a sequence that is loaded but does not fit into the pool holds back those
behind it, so that a long prompt is never starved by short ones. A sequence reserves KV for its
whole life when it starts, so none fails midway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from service.errors import Overloaded
from service.worker.sequence import Sequence


class Scheduler:
    """Queues: waiting (loading or loaded, in order of arrival), one in prefill, running."""

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and self.prefilling is None and not self.running

    def add(self, sequence: Sequence) -> None:
        """Raises Overloaded when the queue is full."""
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests are waiting already: try again later, "
                "or raise KVSTITCH_MAX_WAITING",
                retry_after_s=1.0,
            )
        self.waiting.append(sequence)

    def next_to_prefill(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Takes the first loaded sequence out of the queue, if there is room to run it.

        One whose chunks are still on their way is overtaken; one that does not fit is not.
        """
        if self.prefilling is not None or len(self.running) >= self._max_running:
            return None
        for sequence in self.waiting:
            if not sequence.loaded:
                continue
            if not fits(sequence):
                return None
            self.waiting.remove(sequence)
            self.prefilling = sequence
            return sequence
        return None

    def start_running(self) -> None:
        """The sequence in prefill has its first token."""
        assert self.prefilling is not None
        self.running.append(self.prefilling)
        self.prefilling = None

    def remove(self, sequence: Sequence) -> None:
        """The sequence is finished, failed or aborted, wherever it was."""
        if self.prefilling is sequence:
            self.prefilling = None
        elif sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def find(self, request_id: str) -> Sequence | None:
        active = [*self.waiting, *self.running]
        if self.prefilling is not None:
            active.append(self.prefilling)
        return next((s for s in active if s.id == request_id), None)
