"""Writes short documents about invented entities, and questions about them.

A document is a title (the entity's name) and five to seven sentences of one fact each, so that
several documents of one kind hold the same attributes with different values: only the name tells
them apart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo.language import words
from demo.language.kinds import KINDS, Relation

PRONOUN_SHARE = 0.08
SHORT_NAME_SHARE = 0.35
HELD_OUT_MODULUS = 8
"""One name in eight is never seen in training."""


@dataclass(frozen=True)
class Entity:
    """An invented person, town, ship or firm."""

    kind: str
    name: str
    short: str
    pronoun: str


@dataclass(frozen=True)
class Fact:
    """One attribute of one entity, with its value as it is written ("honey and salt")."""

    entity: Entity
    relation: Relation
    value: str


@dataclass(frozen=True)
class Document:
    """A document about one entity: its sentences, and the fact that each of them states."""

    entity: Entity
    sentences: tuple[str, ...]
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def title(self) -> str:
        return _sentence_case(self.entity.name)


def open_names(held_out: bool) -> list[str]:
    """Lists the names that are held out from training, or those that are not.

    The two sets share syllables, but no name.
    """
    names = []
    for i, first in enumerate(words.SYLLABLES_FIRST):
        for j, last in enumerate(words.SYLLABLES_LAST):
            if ((i * 7 + j * 3) % HELD_OUT_MODULUS == 0) == held_out:
                names.append(first + last)
    return names


def make_entity(rng: random.Random, kind: str, name: str) -> Entity:
    """Makes an entity by adding the word that its kind needs to a name ("Mara Velen")."""
    if kind == "person":
        index = rng.randrange(len(words.GIVEN))
        return Entity(kind, f"{words.GIVEN[index]} {name}", name, "He" if index % 2 else "She")
    if kind == "town":
        full = f"{rng.choice(words.TOWN_PREFIX)} {name}"
        return Entity(kind, full, full, "It")
    if kind == "ship":
        return Entity(kind, f"the {rng.choice(words.SHIP_PREFIX)} {name}", f"the {name}", "It")
    return Entity(kind, f"{name} {rng.choice(words.FIRM_SUFFIX)}", name, "It")


def make_document(
    rng: random.Random,
    entity: Entity,
    num_facts: int,
    relations: tuple[Relation, ...] | None = None,
) -> Document:
    """Writes `num_facts` facts about an entity, one sentence each, in random order.

    Args:
        relations: The attributes to choose from; by default all of the entity's kind.
    """
    facts = tuple(
        Fact(entity, relation, _value(rng, relation))
        for relation in rng.sample(relations or KINDS[entity.kind], num_facts)
    )
    sentences = tuple(state(rng, fact, first=index == 0) for index, fact in enumerate(facts))
    return Document(entity, sentences, facts)


def state(rng: random.Random, fact: Fact, first: bool) -> str:
    """Writes one sentence for a fact; the first of a document gives the entity's full name."""
    template = rng.choice(fact.relation.sentences)
    name = fact.entity.name
    if not first:
        draw = rng.random()
        if draw < PRONOUN_SHARE and template.startswith("{n} "):
            name = fact.entity.pronoun
        elif draw < PRONOUN_SHARE + SHORT_NAME_SHARE:
            name = fact.entity.short
    return _sentence_case(template.format(n=name, v=fact.value))


def ask(rng: random.Random, fact: Fact) -> str:
    """Writes one question for a fact, naming the entity in full."""
    return rng.choice(fact.relation.questions).format(n=fact.entity.name)


def _value(rng: random.Random, relation: Relation) -> str:
    if rng.random() < relation.pair_share:
        return " and ".join(rng.sample(relation.values, 2))
    return rng.choice(relation.values)


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]
