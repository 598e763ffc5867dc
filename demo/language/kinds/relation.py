"""One attribute of a kind of entity, and how prose states it and questions ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One attribute, with the templates of its sentences and questions.

    Templates hold `{n}`, the entity's name, and `{v}`, the value. In a sentence the name always
    precedes the value, so that a causal model can connect the value with its owner while it reads.

    Attributes:
        pair_share: Share of documents in which the value is a list of two ("honey and salt").
    """

    key: str
    values: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    pair_share: float = 0.0
