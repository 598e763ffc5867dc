"""What the engine does in spare time: precomputing chunks, the gate's checks."""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

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
