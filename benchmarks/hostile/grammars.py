"""Grammars that are hard to compile, or to follow; no two alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Guided = dict[str, Any]


def _letters(source: random.Random, count: int) -> str:
    return "".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=count))


def _two_multiples(source: random.Random) -> Guided:
    numbers = source.sample(range(900_001, 999_999, 2), 2)
    return {"json_schema": {"anyOf": [{"type": "integer", "multipleOf": n} for n in numbers]}}


def _a_list_that_doubles(source: random.Random) -> Guided:
    rules = source.randint(30, 60)
    lines = "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(rules))
    return {"grammar": f'start: A0\n{lines}A{rules}: "{_letters(source, 4)}"\n'}


def _groups_in_groups(source: random.Random) -> Guided:
    depth = source.randint(1000, 6000)
    return {"regex": "(" * depth + _letters(source, 4) + ")" * depth}


def _products_of_alternatives(source: random.Random) -> Guided:
    parts, ways = source.randint(7, 9), source.randint(3, 5)
    names = [_letters(source, 5) for _ in range(parts)]
    made = [{"anyOf": [{"properties": {f"{n}{j}": True}} for j in range(ways)]} for n in names]
    return {"json_schema": {"allOf": made}}


def _trees_at_once(source: random.Random) -> Guided:
    name = _letters(source, 6)
    trees = {n: {"type": "object", "properties": {name: {"$ref": f"#/$defs/{n}"}}} for n in "ab"}
    return {"json_schema": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
                            "$defs": trees}}  # fmt: skip


def _repeated_repetitions(source: random.Random) -> Guided:
    a, b, c = (source.randint(50, 900) for _ in range(3))
    return {"regex": f"(({_letters(source, 2)}{{1,{a}}}x?){{1,{b}}}y){{1,{c}}}"}


def _many_states(source: random.Random) -> Guided:
    return {"regex": f"(.*{_letters(source, 1)}.{{{source.randint(15, 40)}}}|.*b.{{9,31}})z"}


def _many_constants(source: random.Random) -> Guided:
    head = _letters(source, 8)
    return {"json_schema": {"enum": [f"{head}{n:05d}" for n in range(source.randint(1000, 3000))]}}


def _long_lists_of_long_lists(source: random.Random) -> Guided:
    schema: dict[str, Any] = {"type": "string", "minLength": source.randint(500, 5000)}
    for _ in range(source.randint(2, 5)):
        schema = {"type": "array", "items": schema, "minItems": source.randint(100, 9000)}
    return {"json_schema": schema}


def _many_optional_properties(source: random.Random) -> Guided:
    count = source.randint(200, 700)
    names = [f"{_letters(source, 4)}{n}" for n in range(count)]
    return {"json_schema": {"type": "object", "properties": {n: {"type": "number"} for n in names},
                            "minProperties": source.randint(2, 20)}}  # fmt: skip


def _ambiguous(source: random.Random) -> Guided:
    return {"grammar": f'start: s\ns: s s s | "{_letters(source, 1)}" | "{_letters(source, 2)}" | '}


def _ambiguous_words(source: random.Random) -> Guided:
    words = " | ".join(f'"{_letters(source, source.randint(1, 3))}"' for _ in range(40))
    return {"grammar": f"start: s\ns: s s | s s s | w\nw: {words} | w w\n"}


KINDS: dict[str, Callable[[random.Random], Guided]] = {
    "two multiples": _two_multiples,
    "a list that doubles": _a_list_that_doubles,
    "groups in groups": _groups_in_groups,
    "products of alternatives": _products_of_alternatives,
    "trees at once": _trees_at_once,
    "repeated repetitions": _repeated_repetitions,
    "many states": _many_states,
    "many constants": _many_constants,
    "long lists of long lists": _long_lists_of_long_lists,
    "many optional properties": _many_optional_properties,
    "ambiguous": _ambiguous,
    "ambiguous words": _ambiguous_words,
}


def grammars(count: int, seed: int) -> list[tuple[str, Guided]]:
    """The same numbers of each kind, mixed; by name."""
    source = random.Random(seed)
    names = list(KINDS)
    made = [(name, KINDS[name](source)) for name in (names[n % len(names)] for n in range(count))]
    source.shuffle(made)
    return made
