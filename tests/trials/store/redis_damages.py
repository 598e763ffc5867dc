"""Damages of the values of a Redis tier."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstitch.kvstore.format.chunk_header import VERSION
from tests.kvstore.format.test_chunk_header import reseal
from tests.trials.store.contents import EXTRA, Entry
from tests.trials.store.damage import Damage, Effect

KEPT, UNSURE, LOST = Effect.KEPT, Effect.UNSURE, Effect.LOST
_LAYERS = 3


@dataclass(frozen=True)
class Values:
    """The values of one chunk, and of another one with the same spec."""

    rng: random.Random
    client: Any  # redis.Redis, whose types are too loose
    entry: Entry
    neighbour: Entry

    def name(self, part: str | int, *, other: bool = False) -> str:
        return f"kvstitch:{{{(self.neighbour if other else self.entry).key}}}:{part}"

    def some_layer(self) -> str:
        return self.name(self.rng.randrange(_LAYERS))

    def some_part(self) -> str:
        """The header or a layer."""
        return self.rng.choice([self.name("h"), self.some_layer()])


Change = Callable[[Values], Any]


def flip(values: Values, name: str) -> None:
    at = values.rng.randrange(values.client.strlen(name))
    byte = values.client.getrange(name, at, at)[0]
    values.client.setrange(name, at, bytes([byte ^ (1 << values.rng.randrange(8))]))


def cut(values: Values) -> None:
    name = values.some_part()
    content = values.client.get(name)
    values.client.set(name, content[: values.rng.randrange(1, len(content))])


def other_type(values: Values, name: str) -> None:
    """A list, a hash or a set of that name: commands for values fail on it."""
    values.client.delete(name)
    match values.rng.randrange(3):
        case 0:
            values.client.rpush(name, "not", "ours")
        case 1:
            values.client.hset(name, "not", "ours")
        case _:
            values.client.sadd(name, "not", "ours")


def string_for_extras(values: Values) -> None:
    values.client.set(values.name("x"), b"not ours")


def swap(values: Values, *parts: str | int) -> None:
    for part in parts:
        one, two = values.name(part), values.name(part, other=True)
        values.client.rename(one, "aside")
        values.client.rename(two, one)
        values.client.rename("aside", two)


def grown(values: Values) -> None:
    name = values.some_part()
    size = values.rng.choice([1, 5000, 8 << 20])
    values.client.append(name, values.rng.randbytes(min(size, 5000)) * (-(-size // 5000)))


def rewritten(old: str, new: str) -> Change:
    def apply(values: Values) -> None:
        raw = values.client.get(values.name("h"))
        values.client.set(values.name("h"), reseal(raw, old, new))

    return apply


def flip_extra(values: Values) -> None:
    content = bytearray(values.client.hget(values.name("x"), EXTRA))
    content[values.rng.randrange(len(content))] ^= 1 << values.rng.randrange(8)
    values.client.hset(values.name("x"), EXTRA, bytes(content))


def others_extra(values: Values) -> None:
    content = values.client.hget(values.name("x", other=True), EXTRA)
    values.client.hset(values.name("x"), EXTRA, content)


def foreign(values: Values) -> None:
    """Names of somebody else, some much like ours."""
    name = values.rng.choice(
        ["x", "kvstitch", "kvstitch:{}:h", "kvstitch:{not-a-key}:h", f"{values.name('h')}:h"]
    )
    values.client.set(name, b"not ours")


REDIS_DAMAGES: list[Damage[Values]] = [
    Damage("redis: flip in the header", lambda v: flip(v, v.name("h"))),
    Damage("redis: flip in a layer", lambda v: flip(v, v.some_layer())),
    Damage("redis: truncated", cut),
    Damage("redis: emptied", lambda v: v.client.set(v.some_part(), b""), silent=True),
    Damage("redis: grown", grown, chunk=UNSURE),
    Damage("redis: a value gone", lambda v: v.client.delete(v.some_part()), silent=True),
    Damage("redis: another type", lambda v: other_type(v, v.some_part())),
    Damage("redis: headers swapped", lambda v: swap(v, "h"), other=LOST),
    Damage("redis: chunks swapped", lambda v: swap(v, "h", 0, 1, 2), other=LOST),
    Damage("redis: a layer swapped", lambda v: swap(v, v.rng.randrange(_LAYERS)), other=LOST),
    Damage("redis: an older version", rewritten(f'"version":"{VERSION}"', '"version":"2"')),
    Damage("redis: another model", rewritten('"model-a"', '"model-b"')),
    Damage("redis: an absurd spec", rewritten('"head_dim":"8"', '"head_dim":"800000000000"')),
    Damage("redis: something foreign", foreign, chunk=KEPT, extra=KEPT),
    Damage("redis: extra: flip", flip_extra, chunk=KEPT, extra=LOST),
    Damage("redis: extra: another's", others_extra, chunk=KEPT, extra=LOST),
    Damage("redis: extra: another type", string_for_extras, chunk=KEPT, extra=LOST),
]
