"""How to wait for a job, and how to walk through pages: what is next, without doing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from kvstitch.client.calls import PAGE_ITEMS, Call, Page
from kvstitch.client.errors import WaitedTooLong
from kvstitch.client.results import Job

T = TypeVar("T")
FIRST_POLL_S = 0.1
LONGEST_POLL_S = 2.0
OnProgress = Callable[[Job], None]
PageCall = Callable[[str | None, int], Call[Page[T]]]


class Waiting:
    """Waiting for one job: pauses grow from a tenth of a second to two."""

    def __init__(self, on_progress: OnProgress | None, timeout_s: float | None) -> None:
        """Begin.

        Args:
            on_progress: Called with the job, first and whenever something changed.
            timeout_s: Longest time to wait; None: until the job ends.
        """
        self._on_progress = on_progress
        self._timeout_s = timeout_s
        self._give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._pause_s = FIRST_POLL_S
        self._seen: Job | None = None

    def pause_before_next(self, job: Job) -> float | None:
        """Seconds until the next look; None: the job has ended.

        Raises:
            WaitedTooLong: The time is up.
        """
        if self._on_progress is not None and job != self._seen:
            self._on_progress(job)
        self._seen = job
        if job.ended:
            return None
        pause_s, self._pause_s = self._pause_s, min(LONGEST_POLL_S, 1.5 * self._pause_s)
        if self._give_up_at is not None and time.monotonic() + pause_s > self._give_up_at:
            raise WaitedTooLong(
                f"job {job.job_id} is {job.state} after {self._timeout_s:g} s, and goes on: "
                f"{job.progress.done} of {job.progress.total} documents are done"
            )
        return pause_s


class Pages(Generic[T]):
    """A list that comes in pages."""

    def __init__(self, call: PageCall[T], limit: int | None) -> None:
        """Begin.

        Args:
            call: Makes the call for the page after a cursor, with at most so many items.
            limit: Most items; None: all.
        """
        self._call = call
        self._left = limit
        self._cursor: str | None = None
        self._over = False

    def next_call(self) -> Call[Page[T]] | None:
        """The call for the next page; None: there is none."""
        if self._over or self._left == 0:
            return None
        return self._call(
            self._cursor, PAGE_ITEMS if self._left is None else min(PAGE_ITEMS, self._left)
        )

    def items(self, page: Page[T]) -> list[T]:
        """The items of a page that has come."""
        found, self._cursor = page
        self._over = self._cursor is None
        if self._left is not None:
            self._left -= len(found)
        return found
