"""Values that nobody expects, and ways to spoil a JSON body."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

TEXTS: list[str] = [
    "",
    " \n\t",
    "\0",
    "a\0b",
    "\ud800",  # half of a pair: JSON can write it, UTF-8 cannot
    "\u202eabc\u2066",
    "é" * 50,
    "🦆" * 20,
    "%00%ff../..\\",
    "' OR 1=1 --",
    '"*" NEAR/2 (',
    "<think></s><|im_end|>[INST]",
    "{{ 7 * 7 }}{% for x in y %}",
    "x" * 20_000,
    "1e999",
    "2024-02-30T25:61:61Z",
]
NUMBERS: list[float] = [
    *(0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 10**400),
    *(0.5, -0.0, 1e308, float("inf"), float("nan")),
]


def nested(depth: int, leaf: object = 0) -> object:
    """Lists in lists."""
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def unexpected(rng: random.Random) -> object:
    """A value of any type."""
    match rng.randrange(8):
        case 0 | 1:
            return rng.choice(TEXTS)
        case 2 | 3:
            return rng.choice(NUMBERS)
        case 4:
            return rng.choice([None, True, False])
        case 5:
            return [rng.choice(TEXTS) for _ in range(rng.choice([0, 1, 3, 600]))]
        case 6:
            return {rng.choice(TEXTS): rng.choice(NUMBERS) for _ in range(rng.randrange(4))}
        case _:
            return nested(rng.choice([1, 5, 60, 150]), rng.choice(TEXTS))


def spoiled(rng: random.Random, body: Any) -> Any:
    """The body with one to three of its values replaced, removed, doubled or added."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(body))
        if not places:
            return unexpected(rng)
        holder, name = rng.choice(places)
        match rng.randrange(6):
            case 0 if isinstance(holder, dict):
                del holder[name]
            case 0:
                holder.append(holder[name])
            case 1 if isinstance(holder, dict):
                holder[rng.choice([*TEXTS, "unknown", name + "s"])] = unexpected(rng)
            case _:
                holder[name] = unexpected(rng)
    return body


def encoded(rng: random.Random, body: Any) -> bytes:
    """JSON, mostly; sometimes text that only resembles JSON, or another encoding."""
    whole = json.dumps(body, ensure_ascii=True).encode()
    changes: list[Callable[[], bytes]] = [
        lambda: whole[: rng.randrange(len(whole) + 1)],
        lambda: b"\xef\xbb\xbf" + whole,
        lambda: whole.decode().encode("utf-16"),
        lambda: b"[" * rng.choice([100, 100_000]) + whole,
        lambda: b'{"a":' * 50_000,
        lambda: whole + whole,
        lambda: whole[:-1] + b',"question":1,"question":"twice"}',
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: whole.replace(b'"', b"'"),
        lambda: b"",
        lambda: b"null",
        lambda: _flipped(rng, whole),
        lambda: b"[" + b"1," * rng.choice([1000, 300_000]) + b"1]",
    ]
    return rng.choice(changes)() if rng.random() < 0.2 else whole


def _flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _places(body: Any) -> Any:
    """(holder, name) of every value in lists and objects."""
    items: Any = ()
    if isinstance(body, dict):
        items = body.items()
    elif isinstance(body, list):
        items = enumerate(body)
    for name, value in list(items):
        yield body, name
        yield from _places(value)
