"""Answers that must match a grammar: which tokens may come next, by llguidance.

A grammar is in llguidance's own form, which the gateway writes from a JSON schema, a regular
expression, a choice or a grammar text and has found valid.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from torch import Tensor

from service.errors import InvalidRequest

FIELD = "guided"


class Grammars:
    """Compiles grammars for one model, on a thread of its own, which the first one starts.

    Args:
        vocabulary: length of its logits.
    """

    def __init__(self, tokenizer: Path, vocabulary: int, end_ids: Collection[int]) -> None:
        self._file = tokenizer
        self._vocabulary = vocabulary
        self._end_ids = sorted(end_ids)
        self._thread = ThreadPoolExecutor(1, "grammar")

    def compile(self, grammar: str) -> Future[Grammar]:
        """Start to compile a grammar, while its prompt is computed."""
        return self._thread.submit(self._compile, grammar)

    def _compile(self, grammar: str) -> Grammar:
        return Grammar(LLMatcher(self._tokenizer, grammar, log_level=0), self._vocabulary)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return LLTokenizer(
            self._file.read_text(encoding="utf-8"),
            n_vocab=self._vocabulary,
            eos_token=self._end_ids or None,  # None: as tokenizer.json has it
        )


class Grammar:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._bits = allocate_token_bitmask(1, vocabulary)

    @property
    def complete(self) -> bool:
        """Whether no token may follow but one that ends the answer."""
        return self._matcher.is_stopped()

    def mask(self, logits: Tensor) -> None:
        """Set logits `[vocabulary]` of tokens that may not come next to -inf, in place.

        Raises:
            InvalidRequest: the grammar is too complex to follow any further.
        """
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")
        allowed = torch.from_numpy(bits[: self._vocabulary]).bool()
        logits.masked_fill_(~allowed, -torch.inf)

    def sampled(self, token: int) -> None:
        """Note the answer's next token.

        Raises:
            InvalidRequest: as `mask`.
        """
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Return the next tokens that there is no choice about; often none."""
        return self._matcher.compute_ff_tokens()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(
                f"{FIELD}: the grammar cannot be followed ({self._matcher.get_error()}): send a "
                "simpler one",
                field=FIELD,
            )
