"""Where an answer stands in its grammar, as one process tells another."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

_HEAD = struct.Struct("<IBI")


@dataclass(frozen=True)
class Step:
    """What may come next.

    Attributes:
        position: Tokens of the answer so far.
        complete: Whether nothing may come but its end.
        forced: Next tokens that there is no choice about; often none.
        allowed: Whether each token may come next, as bits from the lowest, in 32-bit words. Empty
            where `forced` or `complete` says it all.
        error: Why the grammar cannot be followed; empty: it can.
    """

    position: int
    complete: bool = False
    forced: list[int] = field(default_factory=list)
    allowed: bytes = b""
    error: str = ""

    def encode(self) -> bytes:
        status = 2 if self.error else int(self.complete)
        head = _HEAD.pack(self.position, status, len(self.forced))
        return head + token_bytes(self.forced) + (self.allowed or self.error.encode())

    @staticmethod
    def decode(message: bytes) -> Step:
        position, status, count = _HEAD.unpack_from(message)
        rest = _HEAD.size + 4 * count
        forced = token_ids(message[_HEAD.size : rest])
        if status == 2:
            return Step(position, forced=forced, error=message[rest:].decode())
        return Step(position, status == 1, forced, message[rest:])


def token_bytes(tokens: list[int]) -> bytes:
    return np.asarray(tokens, "<u4").tobytes()


def token_ids(message: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(message, "<u4").tolist()
    return ids
