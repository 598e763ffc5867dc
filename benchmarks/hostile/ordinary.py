"""Documents as people hand them in: of all lengths, and in the languages that need tables."""

from __future__ import annotations

import random

# The gateway reads patterns for the compounds of the first six when they first come.
_SENTENCES = (
    "Die Bundesregierung veröffentlicht jährlich einen Bericht über die Wasserversorgung.",
    "De gemeente publiceert elk jaar een verslag over de drinkwatervoorziening van de stad.",
    "Kommunen offentliggör varje år en rapport om stadens vattenförsörjning och avlopp.",
    "Kommunen offentliggør hvert år en beretning om byens vandforsyning og spildevand.",
    "Kommunen offentliggjør hvert år en rapport om byens vannforsyning og kloakkrenseanlegg.",
    "Az önkormányzat minden évben jelentést tesz közzé a város ivóvízellátásáról.",
    "The council publishes a report on the water supply of the town in every year.",
    "Le conseil municipal publie chaque année un rapport sur l'eau potable de la ville.",
)
_LENGTHS = (40, 150, 400, 1_000, 3_000, 10_000)  # characters


def ordinary_documents(seed: int) -> list[dict[str, str]]:
    """A document of each length in each language, mixed."""
    source = random.Random(seed)
    made = []
    for language, sentence in enumerate(_SENTENCES):
        words = sentence.rstrip(".").split()
        for length in _LENGTHS:
            lines: list[str] = []
            while sum(map(len, lines)) < length:
                lines.append(" ".join(source.choices(words, k=12)) + f" {source.randrange(10**6)}.")
            made.append({"doc_id": f"ordinary-{language}-{length}", "text": "\n".join(lines)})
    source.shuffle(made)
    return made
