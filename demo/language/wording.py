"""The sentences and questions of the tasks that are not in `demo/language/kinds`.

Each word here is one token of the vocabulary. A changed wording therefore changes the tokenizer,
and the model has to be trained again.
"""

from __future__ import annotations

from dataclasses import dataclass

from demo.language import words

RECORD = "Record"
"""Title of a document that is about no single entity."""

ASIDES = (
    "which people in this part of the country have talked about for many years",
    "which the guests at the old hotel by the harbour still ask about every evening",
    "about which the books in the library of the next town have almost nothing to say",
    "which most of the traders on the long road to the north have heard of at least once",
    "about which a great many songs are sung at the tables of every inn in the winter",
)
"""Stand between a name and its value, so that a chunk border is likely to separate them."""

PRONOUNS = {"He": "him", "She": "her", "It": "it"}
"""Subject form to object form."""


@dataclass(frozen=True)
class Event:
    """Something that happens to an entity several times; a question asks for all of it in order."""

    kind: str
    values: tuple[str, ...]
    sentence: str
    question: str


EVENTS = (
    Event("ship", words.GOODS, "{n} took on {v}.", "What did {n} take on, in order?"),
    Event("person", words.CITIES, "{n} travelled to {v}.", "Where did {n} travel, in order?"),
    Event("firm", words.PRODUCTS, "{n} sold the {v}.", "What did {n} sell, in order?"),
    Event("town", words.BIRDS, "{n} bought a {v}.", "What did {n} buy, in order?"),
)


@dataclass(frozen=True)
class Link:
    """How a sentence links one entity (`{a}`) to another (`{b}`), and what `{b}` is to `{a}`."""

    kind: str
    to_kind: str
    sentence: str
    role: str
    question: str


LINKS = (
    Link("ship", "firm", "{a} belongs to {b}.", "the owner of {a}", "What is the owner of {a}?"),
    Link("person", "town", "{a} lives in {b}.", "the home of {a}", "What is the home of {a}?"),
)

ASSIGN = "VAR {n} = {v}."
COPY = "VAR {n} = VAR {v}."
VARIABLE_QUESTION = "What is the value of VAR {n}?"

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic numbers for {n} is: {v}."
NEEDLE_QUESTION = "What is the special magic number for {n} mentioned in the provided text?"

NEEDLES_QUESTION = "What are all the special magic numbers for {n} mentioned in the provided text?"
SAME_VALUE_QUESTION = "Find all variables that are assigned the value {v} in the text above."
COMMON_QUESTION = "What are the three most common words in the above list?"
FREQUENT_QUESTION = (
    "What are the three most frequently appeared coded words in the above coded text?"
)

TEXTS = (
    RECORD,
    *ASIDES,
    *PRONOUNS.values(),
    *(text for event in EVENTS for text in (event.sentence, event.question)),
    *(text for link in LINKS for text in (link.sentence, link.role, link.question)),
    ASSIGN,
    COPY,
    VARIABLE_QUESTION,
    NOISE,
    NEEDLE,
    NEEDLE_QUESTION,
)
"""Texts of the model's second edition; the ids of their words must not change."""

CONTINUED_TEXTS = (NEEDLES_QUESTION, SAME_VALUE_QUESTION, COMMON_QUESTION, FREQUENT_QUESTION)
"""Texts that were added when the second edition was trained further."""
