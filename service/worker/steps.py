"""Work on a prompt in steps.

A generator of steps yields None after a layer, so that the engine can do other things, and what it
waits for when it cannot continue before that is done.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Within:
    """A future that is waited for until a moment, by time.monotonic, and no longer."""

    future: Future[Any]
    until: float

    def done(self) -> bool:
        return self.future.done() or time.monotonic() >= self.until

    def result(self) -> None:
        wait([self.future], max(0.0, self.until - time.monotonic()))


Wait = Future[Any] | Within | None
Steps = Generator[Wait, None, T]


def run(steps: Steps[T]) -> T:
    """Run the work to its end, waiting where it waits, and return its result."""
    while True:
        try:
            awaited = next(steps)
            if awaited is not None:
                awaited.result()
        except StopIteration as end:
            result: T = end.value
            return result
