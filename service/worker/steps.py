"""Work on a prompt in steps, in this process and in others that hold other heads.

A generator of steps yields None after a layer, so that the engine can do other things, and a future
when it cannot continue before that future is done.

With tensor parallelism every rank (a process) runs the same functions on the same rows and on its
own heads, so that all of them meet in the same exchanges, in the same order. Rank 0 leads: it alone
decides what is run. Without it a decoder's `ranks` and `lead` are None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from torch import Tensor

P = ParamSpec("P")
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


class Ranks(Protocol):
    """The processes that share a model. Every method is an exchange that all of them make."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, bit by bit the same on each; x may be overwritten."""

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest of every element over all ranks; x may be overwritten."""

    def all_heads(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks, equally large, one after the other along dimension 0."""

    def to_first(self, x: Tensor, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
        """On rank 0 the tensors of all ranks, one after the other; x itself on the others."""


class Lead(Protocol):
    """Runs work on all ranks. Only rank 0 has one."""

    def run(self, work: Callable[..., T], arguments: dict[str, Any]) -> T:
        """Run work by its arguments' names; if it is in steps, every rank takes them together."""

    def repeat(self, change: Callable[..., Any], *arguments: Any) -> int:
        """Let the others make a change of the KV pool, or of a sequence's KV."""


def on_all_ranks(work: Callable[P, T]) -> Callable[P, T]:
    """Let a function, whose first argument is a decoder, run on all ranks."""
    signature = inspect.signature(work)

    @wraps(work)
    def on_ranks(*args: P.args, **kwargs: P.kwargs) -> T:
        decoder: Any = args[0] if args else kwargs["decoder"]
        if decoder.lead is None:
            return work(*args, **kwargs)
        lead: Lead = decoder.lead
        return lead.run(on_ranks, signature.bind(*args, **kwargs).arguments)

    return on_ranks
