"""What a damage is, and what it may change for those who read afterwards."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class Effect(enum.Enum):
    """What may be read of something after a damage."""

    KEPT = "exactly what was put"
    UNSURE = "exactly what was put, or nothing"
    LOST = "nothing"


@dataclass(frozen=True)
class Damage(Generic[T]):
    """One way to damage what a tier has stored.

    Attributes:
        name: for the report.
        apply: changes what is stored.
        chunk: what becomes of the chunk.
        extra: what becomes of the extra tensors beside it.
        other: what becomes of a second chunk of equal size, and of its extra tensors.
        silent: the loss is a plain miss, as of something that was never stored.
    """

    name: str
    apply: Callable[[T], object]
    chunk: Effect = Effect.LOST
    extra: Effect = Effect.UNSURE
    other: Effect = Effect.KEPT
    silent: bool = False
