"""Work on a prompt in steps.

A generator of steps yields None after a layer, so that the engine can do other things, and a future
when it cannot continue before that future is done.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Wait = Future[Any] | None
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
