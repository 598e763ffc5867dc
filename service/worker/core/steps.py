"""Work on a prompt as a generator, so that the engine can do other things between its steps.

It yields None after a layer, and a future when it cannot continue before that future is done.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Wait = Future[Any] | None
Steps = Generator[Wait, None, T]


def run(steps: Steps[T]) -> T:
    """Runs the work to its end, waiting where it waits, and returns its result."""
    while True:
        try:
            awaited = next(steps)
            if awaited is not None:
                awaited.result()
        except StopIteration as end:
            result: T = end.value
            return result
