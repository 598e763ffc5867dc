"""Drafts an answer's next tokens from the text before it ("prompt lookup decoding").

Answers from documents repeat their wording. Where the answer's last tokens occurred before, what
followed them there is the draft. A decode step feeds it with the last token, and accepts each of
its tokens that is sampled at its place anyway. So no answer changes, but a step can yield several
tokens, and hardly takes longer: its time goes into reading the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 2
"""Tokens that must have occurred before."""
LONGEST = 10
"""Tokens that are compared to tell several such places apart."""
PLACES = 32
"""Latest places that are compared."""
MOST_SKIPPED = 15
"""Steps without a draft after drafts that were all rejected."""


class Drafter:
    """Drafts the tokens of one answer."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._places: dict[tuple[int, ...], list[int]] = {}  # where what follows begins
        self._indexed = 0
        self._answer = 0
        self._rejected = 0
        self._skipped = 0

    def draft(self, answer: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow the answer so far, often none."""
        self._text.extend(answer[self._answer :])
        self._answer = len(answer)
        if most <= 0 or self._skipped:
            self._skipped = max(0, self._skipped - 1)
            return []
        self._index()
        places = self._places.get(tuple(self._text[-SHORTEST:]), ())
        if not places:
            return []
        place = max(places[-PLACES:], key=lambda at: (self._alike(at), at))
        return self._text[place : place + most]

    def checked(self, drafted: int, accepted: int) -> None:
        """Note how many tokens of a draft were accepted. After misses fewer are made."""
        if accepted:
            self._rejected = 0
        elif drafted:
            self._rejected += 1
            self._skipped = min(MOST_SKIPPED, 2**self._rejected - 1)

    def _index(self) -> None:
        """Note all places but the end of the text, after which nothing follows."""
        for end in range(max(self._indexed, SHORTEST), len(self._text)):
            self._places.setdefault(tuple(self._text[end - SHORTEST : end]), []).append(end)
        self._indexed = max(self._indexed, len(self._text))

    def _alike(self, place: int) -> int:
        """Return how many tokens before a place are the text's last ones."""
        text, end = self._text, len(self._text)
        for n in range(SHORTEST, LONGEST):
            if n >= place or text[place - n - 1] != text[end - n - 1]:
                return n
        return LONGEST
