"""What the work on a prompt yields between its steps: None after a layer (the engine may do other
things), or a future that must be done before it goes on."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Wait = Future[Any] | None
Steps = Generator[Wait, None, T]


def run(steps: Steps[T]) -> T:
    """Drive work to its end, for those who have nothing to do in between."""
    while True:
        try:
            awaited = next(steps)
            if awaited is not None:
                awaited.result()
        except StopIteration as end:
            result: T = end.value
            return result
