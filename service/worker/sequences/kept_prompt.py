"""Prompts whose KV is still somewhere, and what another prompt may take from them.

The rules are the same wherever the KV is: in the KV pool or on disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from service.messages.requests import Generate
from service.worker.kv.pool import SequenceKV

MIN_TOKENS = 32
"""Copying fewer gains nothing."""

Place = Literal["pool", "prompts"]
"""Where KV that is taken was: in the KV pool, or on disk."""


@dataclass(frozen=True, eq=False)
class EarlierPrompt:
    """What is known of an earlier prompt, without its KV.

    Attributes:
        tokens: whose KV there is: the prompt's, then the answer's `[m]` int64.
        prompt_tokens: how many of them are the prompt's.
        system_tokens: how many of these are S.
        question_start: where its Q begins.
        tenant: who asked it.
        lora: fingerprint of the LoRA adapter that it was computed with; "" for the base model.
        method: how it was computed; equal for requests that would be computed alike.
        exact: whether its KV is that of a full prefill.
    """

    tokens: Tensor
    prompt_tokens: int
    system_tokens: int
    question_start: int
    tenant: str
    lora: str
    method: str
    exact: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes of this class, by name."""
        return {field.name: getattr(self, field.name) for field in fields(EarlierPrompt)}

    def is_repeated(self, tokens: int) -> bool:
        """Whether a prompt that takes its first `tokens` tokens repeats it.

        That is, whether the prompt begins with the same documents in the same order or, if there
        are none, with the whole of it. To share S, as all prompts do, is not enough.
        """
        has_documents = self.question_start > self.system_tokens
        return tokens >= (self.question_start if has_documents else self.prompt_tokens)


class KeptKV(Protocol):
    """The KV of an earlier prompt."""

    @property
    def reserved_tokens(self) -> int:
        """Tokens that there is room for; 0 when it has been given up."""
        ...

    def copy_to(self, kv: SequenceKV, tokens: int) -> None:
        """Copies the first `tokens` tokens to a sequence."""
        ...


@dataclass(frozen=True, eq=False)
class KeptPrompt(EarlierPrompt):
    """An earlier prompt with its KV.

    Attributes:
        logits: of the first answer token `[vocabulary]`.
        kv: its KV.
        repeats: whether it repeated an earlier prompt itself: then it may well be repeated, too.
        place: where its KV is.
    """

    logits: Tensor
    kv: KeptKV
    repeats: bool = False
    place: Place = "pool"


@dataclass(frozen=True)
class Reuse:
    """The first `tokens` tokens of a prompt are those of a kept one."""

    kept: KeptPrompt
    tokens: int

    @property
    def lost(self) -> bool:
        """Whether the kept prompt has been given up meanwhile."""
        return not self.kept.kv.reserved_tokens


@dataclass(frozen=True)
class Wanted:
    """A prompt that may begin with an earlier one.

    Attributes:
        tokens: its token ids `[n]` int64.
        question_start: where its Q begins.
        tenant: who asks it.
        lora: as in `EarlierPrompt`.
        method: as in `EarlierPrompt`.
        full_prefill: whether it would be computed as a full prefill.
    """

    tokens: Tensor
    question_start: int
    tenant: str
    lora: str
    method: str
    full_prefill: bool

    def reusable(self, earlier: EarlierPrompt) -> int:
        """How many of its tokens can be taken from an earlier prompt."""
        alike = earlier.method == self.method and earlier.question_start == self.question_start
        from_any = earlier.exact and self.full_prefill
        ours = (earlier.tenant, earlier.lora) == (self.tenant, self.lora)
        if not ours or not (alike or from_any):
            return 0
        shared = shared_tokens(earlier.tokens, self.tokens)
        if shared < earlier.prompt_tokens and not from_any:
            return 0
        # Without kept logits the last token is computed for its own.
        whole = shared == len(self.tokens) == earlier.prompt_tokens
        return shared if whole else min(shared, len(self.tokens) - 1)


def prompt_tokens(request: Generate) -> Tensor:
    """Token ids of a request's prompt `[n]` int64 in host memory."""
    ids = array("q", request.system)
    for document in request.documents:
        ids.extend(document.ids)
    ids.extend(request.question)
    return torch.tensor(ids, dtype=torch.long)


def holds(tokens: Tensor, text: Sequence[int]) -> bool:
    """Whether a text's token ids stand in `tokens` `[n]` int64 one after the other."""
    if not text:
        return False
    whole, part = tokens.numpy().tobytes(), array("q", text).tobytes()
    at = whole.find(part)
    while at >= 0 and at % 8:  # not at the border of a number
        at = whole.find(part, at + 1)
    return at >= 0


def shared_tokens(a: Tensor, b: Tensor) -> int:
    """Number of first tokens that are the same."""
    shorter = min(len(a), len(b))
    different = (a[:shorter] != b[:shorter]).nonzero()
    return int(different[0]) if len(different) else shorter


def replaces(later: EarlierPrompt, earlier: EarlierPrompt) -> bool:
    """Whether a prompt serves whatever an earlier one does, because it begins with all of it."""
    return (
        (later.tenant, later.lora) == (earlier.tenant, earlier.lora)
        and later.method == earlier.method
        and (later.exact or later.prompt_tokens == earlier.prompt_tokens)
        and shared_tokens(later.tokens, earlier.tokens) == len(earlier.tokens)
    )
