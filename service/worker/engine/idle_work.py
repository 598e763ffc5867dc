"""Work for times without requests: precompute and the gate's checks, in turns."""

from __future__ import annotations

import logging
from collections.abc import Collection

from service.worker.checks.correctness_gate import Gate
from service.worker.loading.precompute_queue import PrecomputeQueue

log = logging.getLogger("kvstitch.engine")


class IdleWork:
    """Alternates between steps of the precompute queue and of the gate, if there is a gate.

    Neither waits for the other to finish.
    """

    def __init__(self, precompute_queue: PrecomputeQueue, gate: Gate | None) -> None:
        self._queue = precompute_queue
        self._gate = gate
        self._queue_is_next = True

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute right now."""
        return self._queue.idle and (self._gate is None or self._gate.idle)

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]] = ()) -> None:
        """Drops work that uses these chunks, because they are about to be purged.

        Args:
            texts: their token ids.
        """
        self._queue.forget(keys, texts)
        if self._gate is not None:
            self._gate.forget(keys)

    def advance(self) -> None:
        """Runs one step of one of them; an error ends the chunk or check that raised it."""
        gate = self._gate
        if gate is not None and not gate.idle and (self._queue.idle or not self._queue_is_next):
            self._queue_is_next = True
            try:
                gate.advance()
            except Exception as error:
                gate.fail_current(error)
            return
        self._queue_is_next = False
        try:
            self._queue.advance()
        except Exception as error:
            log.error("precompute failed", exc_info=error)
            self._queue.fail_current(error)
