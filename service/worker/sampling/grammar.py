"""Answers that must match a grammar: which tokens may come next.

A grammar is in llguidance's own form, which the gateway writes from a JSON schema, a regular
expression, a choice or a grammar text and has found valid. It is compiled and followed in a process
of its own, which works while the prompt and the next token are computed. What takes it long delays
its own answer only: a sequence whose grammar has not replied sits out a decode step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.grammars.limits import WALL_S
from kvstitch.service.grammars.processes import FollowedGrammar, GrammarProcesses, Step

FIELD = "guided"
MOST_OPEN = 64
"""Grammars that have a process at the same time; others wait, as for a place in the batch."""


class Grammars:
    """Compiles grammars for one model, of logits of length `vocabulary`. For one thread."""

    def __init__(self, tokenizer: Path, vocabulary: int, end_ids: Collection[int]) -> None:
        self.processes = GrammarProcesses(tokenizer, vocabulary, end_ids)
        self.vocabulary = vocabulary
        self.open = 0

    def compile(self, grammar: str) -> Grammar:
        """Return a grammar that is compiled from its first `ready` on."""
        return Grammar(self, grammar)

    def close(self) -> None:
        """End the process that the others come from."""
        self.processes.close()


class Grammar:
    """Where one answer stands in its grammar."""

    def __init__(self, grammars: Grammars, text: str) -> None:
        self._grammars = grammars
        self._text = text
        self._followed: FollowedGrammar | None = None
        self._closed = False
        self._forced: deque[int] = deque()  # next tokens that there is no choice about
        self._taken: list[int] = []  # of them; its process knows them
        self._step: Step | None = None
        self.compiled = False
        self.quick = True

    def ready(self, patience_s: float = 0.0) -> bool:
        """Return whether it is known what may come next, within so many seconds."""
        if self._forced or self._step is not None:
            return True
        if self._followed is None:
            if self._closed or self._grammars.open >= MOST_OPEN:
                return False
            self._grammars.open += 1
            self._followed = FollowedGrammar(self._grammars.processes, self._text)
        step = self._followed.step(patience_s)
        if step is None:
            return False
        if step.error:
            raise InvalidRequest(
                f"{FIELD}: the grammar cannot be followed: {step.error}", field=FIELD
            )
        self._step, self.compiled = step, True
        self._forced.extend(step.forced)
        return True

    @property
    def complete(self) -> bool:
        """Whether no token may follow but one that ends the answer. Blocks if not `ready`."""
        return not self._next_forced() and self._known().complete

    def allowed(self) -> Tensor:
        """Return the ids of tokens that may come next `[n]` int64, if not `only` one may."""
        words = np.frombuffer(self._known().allowed, np.uint8)
        bits = np.unpackbits(words, count=self._grammars.vocabulary, bitorder="little")
        return torch.from_numpy(np.flatnonzero(bits.view(np.bool_)))

    def only(self) -> int | None:
        """Return the one token that may come next; None: several may. Blocks if not `ready`."""
        return self._forced[0] if self._next_forced() else None

    def sampled(self, token: int) -> None:
        """Note the answer's next token, one of those that may come."""
        self._taken.append(token)
        if self._forced:
            self._forced.popleft()
            if self._forced:
                return
        assert self._followed is not None
        self._followed.follow(self._taken)
        self._taken, self._step = [], None

    def forced(self) -> list[int]:
        """Return the next tokens that there is no choice about, as far as known; often none."""
        return list(self._forced)

    def close(self) -> None:
        """End its process."""
        if self._followed is not None and not self._closed:
            self._grammars.open -= 1
            self._followed.close()
        self._closed = True

    def _next_forced(self) -> bool:
        self._known()
        return bool(self._forced)

    def _known(self) -> Step:
        if not self.ready(WALL_S) or self._step is None:
            raise InvalidRequest(f"{FIELD}: the grammar was closed", field=FIELD)
        return self._step
