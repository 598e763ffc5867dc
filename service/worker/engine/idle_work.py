"""What is done in spare time: precompute and the gate's checks, in turns."""

from __future__ import annotations

import logging
from collections.abc import Collection

from service.worker.checks.gate import Gate
from service.worker.loading.precompute_queue import PrecomputeQueue

log = logging.getLogger("kvstitch.engine")


class IdleWork:
    """Steps of the precompute queue, and of the gate where there is one. Neither waits for the
    other to finish."""

    def __init__(self, precompute_queue: PrecomputeQueue, gate: Gate | None) -> None:
        self._queue = precompute_queue
        self._gate = gate
        self._queue_is_next = True

    @property
    def idle(self) -> bool:
        """Nothing to compute right now."""
        return self._queue.idle and (self._gate is None or self._gate.idle)

    def forget(self, keys: Collection[str]) -> None:
        """Before these chunks are purged: nothing is done with them any more."""
        self._queue.forget(keys)
        if self._gate is not None:
            self._gate.forget(keys)

    def advance(self) -> None:
        """One step of one of them; a fault ends what it was a step of."""
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
