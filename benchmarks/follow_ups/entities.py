"""What the demo's questions are about, and how a follow-up question speaks of it.

How long does the guarantee of the Brightwater K2 kettle last?
pronoun    How long does the guarantee of it last?
ellipsis   And how long does the guarantee last?
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Pronouns:
    subject: str
    object: str
    possessive: str
    place: str = ""
    """What replaces "in X" and "at X"; empty: the object's pronoun stays behind the preposition."""


IT = Pronouns("it", "it", "its")
PLACE = Pronouns("it", "it", "its", "there")
SHE = Pronouns("she", "her", "her")
HE = Pronouns("he", "him", "his")
THEY = Pronouns("they", "them", "their")

# Longer names first: the first that matches is replaced.
_NAMES: tuple[tuple[str, Pronouns], ...] = (
    (r"the home for circus performers at Lower Sallow|the circus home|the circus", PLACE),
    (r"the (?:mobile )?library of Port Ellery", IT),
    (r"the Haverling (?:choral society|choir)", THEY),
    (r"the (?:Haverling (?:town )?archive|archive of Haverling)", IT),
    (r"the Lower Sallow allotment(?: society|s)", THEY),
    (r"the web shop of Tarnfell(?: Outfitters)?", IT),
    (r"the Quillby lantern festival", IT),
    (r"the dairy in Lindmoor|the Lindmoor dairy", IT),
    (r"the Lindmoor yoghurt|Lindmoor yoghurt", IT),
    (r"the (?:rye bread of Great Murren|Great Murren rye bread)", IT),
    (r"the (?:elderflower cordial from Lindmoor|elderflower cordial|Lindmoor cordial)", IT),
    (r"the (?:shepherds' pasty from Kettlemoor|Kettlemoor pasty)", IT),
    (r"the Ostermark plum cake", IT),
    (r"the Port Ellery fish soup", IT),
    (r"the (?:Wednesday dumplings|mountain hut lentils)", THEY),
    (r"Dilys Harker's (?:pumpkin )?chutney", IT),
    (r"the Brightwater K2 kettle", IT),
    (r"the Corrie 3 tent", IT),
    (r"the Ember 40 stove", IT),
    (r"the Millstone bread maker", IT),
    (r"the Arid 20(?: dehumidifier)?", IT),
    (r"the Swift Heron", IT),
    (r"the Nightjar 130(?: telescope)?", IT),
    (r"the Penelope", IT),
    (r"the Clearwell filter", IT),
    (r"the Petrel(?: weather station)?", IT),
    (r"the (?:ferry )?Selkie", IT),
    (r"the bakery Osei", IT),
    (r"the crane at Port Ellery", IT),
    (r"Gander Lane school", IT),
    (r"(?:the )?Larkspur Court", PLACE),
    (r"Kettlemoor Rovers", THEY),
    (r"the Raven Hut", PLACE),
    (r"the Skarn Head watch-house|Skarn Head", PLACE),
    (r"the lighthouse on Gull Point|Gull Point", PLACE),
    (r"the Clock Museum(?: in Ostermark)?", PLACE),
    (r"Lindmoor bog", PLACE),
    (r"the buses around Kettlemoor", THEY),
    (r"Haverling cathedral", IT),
    (r"the Tarnfell canteen|Tarnfell(?: Outfitters)?", PLACE),
    (r"(?:the architect )?Leonora Hatch", SHE),
    (r"Matilda Crane", SHE),
    (r"Clementine Darrow", SHE),
    (r"(?:Étienne )?Morel", HE),
    (r"Great Murren|Lower Sallow|Port Ellery", PLACE),
    (r"Kettlemoor|Haverling|Sandholm|Ostermark|Quillby|Lindmoor", PLACE),
)
_COMPILED = tuple((re.compile(rf"\b(?:{names})\b"), pronouns) for names, pronouns in _NAMES)
_PREPOSITION = r"(of|for|at|in|with|on|from|to|by|into|off)"


def named_in(question: str) -> tuple[re.Pattern[str], Pronouns] | None:
    """The entity that a question names; None: none of the list."""
    return next(((name, kind) for name, kind in _COMPILED if name.search(question)), None)


def with_pronoun(question: str) -> str | None:
    """The question with a pronoun in the entity's place; None: it names none."""
    found = named_in(question)
    if found is None:
        return None
    name, pronouns = found

    def placed(match: re.Match[str]) -> str:
        preposition = match[1]
        if pronouns.place and preposition in ("at", "in"):
            return f" {pronouns.place}"
        return f" {preposition} {pronouns.object}"

    out = re.sub(rf"{name.pattern}'s\b", pronouns.possessive, question)
    out = re.sub(rf" {_PREPOSITION} {name.pattern}", placed, out)
    out = re.sub(name.pattern, pronouns.subject, out)
    return out[0].upper() + out[1:]


def with_ellipsis(question: str) -> str | None:
    """The question without "of X", "at X" and the like; None: it has no such words."""
    found = named_in(question)
    if found is None:
        return None
    out = re.sub(rf" {_PREPOSITION} {found[0].pattern}(?!')", "", question)
    if found[0].search(out):
        return None
    return f"And {out[0].lower()}{out[1:]}"
