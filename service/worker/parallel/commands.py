"""What rank 0 tells the others, in this order and over a pipe, and what they answer.

They run the same code as rank 0, so a command only says what rank 0 alone can know: which work is
begun and with what, which is continued, and when a load has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# -- from rank 0 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Load the model, and keep this rank's part."""

    folder: str
    dtype: str
    device: str
    threads: int


@dataclass(frozen=True)
class MakePool:
    """Make a KV pool."""

    pool: int
    tokens: int


@dataclass(frozen=True)
class Reserve:
    """Reserve a part of a pool for a sequence."""

    pool: int
    kv: int
    tokens: int


@dataclass(frozen=True)
class OnKV:
    """Call a method of a sequence's KV."""

    kv: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Begin:
    """Begin work in steps; `Next` runs them."""

    run: int
    work: Callable[..., Any]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Next:
    run: int


@dataclass(frozen=True)
class Close:
    run: int


@dataclass(frozen=True)
class Call:
    """Run work that is done in one go."""

    work: Callable[..., Any]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Waits:
    """Within a step: the layer has not arrived, so the step ends here."""


@dataclass(frozen=True)
class Arrived:
    """Within a step: the layer has arrived."""


@dataclass(frozen=True)
class Lost:
    """Within a step: the layer will not arrive, so the work fails here."""


@dataclass(frozen=True)
class Check:
    """The last piece of work failed on rank 0: did it here, too, and are we in step?"""


# -- arguments that stand for something each rank has for itself ----------------------------------


@dataclass(frozen=True)
class Cache:
    """The KV of a sequence in a pool."""

    kv: int


@dataclass(frozen=True)
class Scratch:
    """A KV cache for one layer at a time."""

    tokens: int


@dataclass(frozen=True)
class Stored:
    """A stored segment, which rank 0 shares."""

    tokens: int


@dataclass(frozen=True)
class Resumed:
    """Where the prefill of a sequence got to.

    Attributes:
        anew: there was no earlier run, or it left nothing.
    """

    kv: int
    anew: bool


@dataclass(frozen=True)
class Observed:
    """What an eviction method observed in the prefill of a sequence."""

    kv: int


@dataclass(frozen=True)
class Fed:
    """A sequence that decodes; implements `Decodable` where `kv` is put in place."""

    tokens: Sequence[int]
    position: int
    kv: Any


# -- from the others ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """The answer to `Load`.

    Attributes:
        refused: why the model cannot be served; empty if it can.
        nbytes: of the weights of this rank.
    """

    refused: str
    nbytes: int


@dataclass(frozen=True)
class Checked:
    """The answer to `Check`.

    Attributes:
        failed: whether the last piece of work failed here.
        exchanges: made so far.
    """

    failed: bool
    exchanges: int
