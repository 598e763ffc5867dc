"""Work for times without requests: precompute, the gate's checks and storing prompts, in turns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from typing import Protocol

from service.worker.gate.correctness_gate import Gate
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.prefix_cache.writer import PrefixWriter

log = logging.getLogger("kvstitch.engine")


class Job(Protocol):
    """One kind of idle work."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do right now."""

    def advance(self) -> None:
        """Run one step."""

    def fail_current(self, error: Exception) -> None:
        """End what the last step worked on, because it raised this error."""


class IdleWork:
    """Takes turns between steps of the precompute queue, of the gate and of the prompts' writer.

    None waits for another to finish. Gate and writer may be None.
    """

    def __init__(
        self, precompute_queue: PrecomputeQueue, gate: Gate | None, writer: PrefixWriter | None
    ) -> None:
        self._queue = precompute_queue
        self._gate = gate
        self._jobs: deque[Job] = deque([precompute_queue])  # the one whose turn it is first
        self._jobs.extend(job for job in (gate, writer) if job is not None)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do right now."""
        return all(job.idle for job in self._jobs)

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]] = ()) -> None:
        """Drop work that uses these chunks, because they are about to be purged.

        Args:
            texts: their token ids.
        """
        self._queue.forget(keys, texts)
        if self._gate is not None:
            self._gate.forget(keys)

    def forget_all(self) -> None:
        """Drop all work that no caller waits for."""
        self._queue.forget_all()
        if self._gate is not None:
            self._gate.forget(None)

    def advance(self) -> None:
        """Run one step of one of them; an error ends the chunk, check or copy that raised it."""
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
