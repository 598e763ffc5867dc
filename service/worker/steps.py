"""Work on a prompt in steps, in this process and in others that hold other heads.

A generator of steps yields None after a layer, so that the engine can do other things, and a future
when it cannot continue before that future is done.

With tensor parallelism every rank (a process) runs the same functions on the same rows and on its
own heads, so that all of them meet in the same exchanges, in the same order. Rank 0 leads: it alone
decides what is run. Without it a decoder's `ranks` and `lead` are None.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from torch import Tensor

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


class Ranks(Protocol):
    """The processes that share a model. Every method is an exchange that all of them make.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks, bit by bit the same on each; x may be overwritten."""
        ...

    def largest(self, x: Tensor) -> Tensor:
        """The largest of every element over all ranks; x may be overwritten."""
        ...

    def all_heads(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, equally large, one after the other along dimension 0."""
        ...

    def to_first(self, x: Tensor, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
        """On rank 0 the tensors of all ranks, one after the other; x itself on the others.

        Args:
            dim: along which they are joined.
            sizes: of every rank's tensor in that dimension; None: all are equally large.
        """
        ...


class Lead(Protocol):
    """Runs functions on all ranks. Only rank 0 has one.

    The function and its arguments must be such that other processes can have them: arguments are
    passed by name, and KV caches, stored segments and sequences are replaced by their counterparts.
    """

    def steps(self, work: Callable[..., Steps[T]], **arguments: Any) -> Steps[T]:
        """Runs work in steps: every rank takes a step when this rank does."""
        ...

    def call(self, work: Callable[..., T], **arguments: Any) -> T:
        """Runs work that is done in one go."""
        ...
