"""The scheduler: three queues of sequences, and the order in which they are served.

First come, first served: a sequence that could start but does not fit into the pool holds back
those behind it, so that short prompts never starve a long one. A sequence reserves KV for its whole
life when it starts, so none fails midway. While a prefill waits for its chunks, the next one may
start; of several prefills, the earliest that need not wait runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from service.errors import Overloaded
from service.worker.sequences.sequence import EngineSequence

# Most prefills that are started and not finished; another one starts only while all others wait.
MAX_PREFILLING = 4


class Scheduler:
    """The queues of an engine.

    Attributes:
        waiting: sequences that have not started, in order of arrival.
        prefilling: sequences whose prefill has started, in order of their start.
        running: sequences that decode.
    """

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting: deque[EngineSequence] = deque()
        self.prefilling: list[EngineSequence] = []
        self.running: list[EngineSequence] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.prefilling and not self.running

    @property
    def active(self) -> list[EngineSequence]:
        return [*self.waiting, *self.prefilling, *self.running]

    @property
    def next_prefill(self) -> EngineSequence | None:
        """The prefill to run next; the first one, if all wait for their chunks."""
        ready = (sequence for sequence in self.prefilling if not sequence.blocked)
        return next(ready, self.prefilling[0] if self.prefilling else None)

    def add(self, sequence: EngineSequence) -> None:
        """Adds a sequence to the waiting ones.

        Raises:
            Overloaded: too many are waiting already.
        """
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests are waiting already: try again later, "
                "or raise KVSTITCH_MAX_WAITING",
                retry_after_s=1.0,
            )
        self.waiting.append(sequence)

    def next_to_start(self, fits: Callable[[EngineSequence], bool]) -> EngineSequence | None:
        """Moves the first sequence that can start to `prefilling`, and returns it."""
        sequence = self.can_start(fits)
        if sequence is not None:
            self.waiting.remove(sequence)
            self.prefilling.append(sequence)
        return sequence

    def can_start(self, fits: Callable[[EngineSequence], bool]) -> EngineSequence | None:
        """The first sequence that can start, if there is room and all started prefills wait.

        A sequence whose chunks have not been found yet is overtaken; one that does not fit into the
        pool is not.

        Args:
            fits: whether a sequence fits into the pool.
        """
        if len(self.running) + len(self.prefilling) >= self._max_running:
            return None
        if len(self.prefilling) >= MAX_PREFILLING or any(not s.blocked for s in self.prefilling):
            return None
        for sequence in self.waiting:
            if sequence.loaded:
                return sequence if fits(sequence) else None
        return None

    def start_running(self, sequence: EngineSequence) -> None:
        """Moves a sequence whose prefill is finished to `running`."""
        self.prefilling.remove(sequence)
        self.running.append(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Removes a sequence that has finished, failed or been aborted from its queue."""
        for queue in (self.waiting, self.prefilling, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def find(self, request_id: str) -> EngineSequence | None:
        return next((s for s in self.active if s.id == request_id), None)
