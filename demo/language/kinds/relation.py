"""One attribute of a kind of entity, and how prose states it and questions ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """Templates hold `{n}`, the entity's name, and `{v}`, the value.

    The name always precedes the value, so that a causal model can bind the value to its owner
    while it reads. `pair_share` is the share of documents in which the value is a list of two
    ("honey and salt").
    """

    key: str
    values: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    pair_share: float = 0.0
