"""Prompts in the prefix cache, and what another prompt may take from them.

The rules are the same wherever the KV is: in the KV pool or on disk.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, Protocol, TypeVar

from torch import Tensor

from service.worker.kv.pool import SequenceKV

MIN_TOKENS = 32
"""Copying fewer gains nothing."""
MIN_HISTORY = 64
"""Tokens of earlier turns: to compute fewer takes hardly any time."""
BLOCK = 64
"""Tokens between two hashes of the index. A shorter prompt is not found."""

Place = Literal["pool", "prompts"]
"""Where a prompt's KV is: in the KV pool, or on disk."""


@dataclass(frozen=True, eq=False)
class PromptRecord:
    """What is known of a prompt in the cache, without its KV.

    Attributes:
        tokens: whose KV there is: the prompt's, then the answer's `[m]` int64.
        prompt_tokens: how many of them are the prompt's.
        system_tokens: how many of these are S.
        question_start: where its Q begins.
        tenant: who asked it, and who may continue it: a tenant, or those of it who may read the
            same (`Generate.sharers`).
        lora: fingerprint of the LoRA adapter that it was computed with; "" for the base model.
        method: how it was computed; equal for requests that would be computed alike.
        exact: whether its KV is that of a full prefill.
        history: first tokens of its Q that are earlier turns.
    """

    tokens: Tensor
    prompt_tokens: int
    system_tokens: int
    question_start: int
    tenant: str
    lora: str
    method: str
    exact: bool
    history: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes of this class, by name."""
        return {each.name: getattr(self, each.name) for each in fields(PromptRecord)}

    def is_repeated(self, tokens: int) -> bool:
        """Return whether a prompt that takes its first `tokens` tokens repeats it."""
        has_documents = self.question_start > self.system_tokens
        return tokens >= (self.question_start if has_documents else self.prompt_tokens)


class CachedKV(Protocol):
    """The KV of a prompt in the cache."""

    @property
    def reserved_tokens(self) -> int:
        """Tokens that there is room for; 0 when it has been evicted."""

    def copy_to(self, kv: SequenceKV, tokens: int) -> None:
        """Copy the first `tokens` tokens to a sequence."""


@dataclass(frozen=True, eq=False)
class CachedPrompt(PromptRecord):
    """A prompt in the cache with its KV.

    Attributes:
        logits: of the first answer token `[vocabulary]`.
        repeats: whether it repeated an earlier prompt itself, so that it may well be repeated, too.
        seen: what other prompts held before the earlier turns that it took from them, as token ids
            `[m]` each: its KV has seen them, though it does not hold them.
    """

    logits: Tensor = field(kw_only=True)
    kv: CachedKV = field(kw_only=True)
    repeats: bool = False
    place: Place = "pool"
    seen: tuple[Tensor, ...] = ()

    def has_seen(self, texts: Collection[Sequence[int]]) -> bool:
        """Return whether it holds one of these texts, or its earlier turns have seen one."""
        return any(holds(tokens, ids) for tokens in (self.tokens, *self.seen) for ids in texts)


@dataclass(frozen=True)
class Reuse:
    """The first `tokens` tokens of a prompt are those of one in the cache."""

    prompt: CachedPrompt
    tokens: int

    @property
    def lost(self) -> bool:
        """Whether that prompt has been evicted meanwhile."""
        return not self.prompt.kv.reserved_tokens


@dataclass(frozen=True)
class History:
    """Earlier turns: the first `tokens` tokens of a prompt's question stand in an earlier prompt.

    Attributes:
        prompt: whose question begins with them, and goes on in its answer.
    """

    prompt: CachedPrompt
    tokens: int

    @property
    def lost(self) -> bool:
        """Whether that prompt has been evicted meanwhile."""
        return not self.prompt.kv.reserved_tokens

    @property
    def behind(self) -> Tensor:
        """Token ids that they were computed behind `[m]`."""
        return self.prompt.tokens[: self.prompt.question_start]

    @property
    def seen(self) -> tuple[Tensor, ...]:
        """What their KV has seen beside themselves, as token ids."""
        return (self.behind, *self.prompt.seen)


@dataclass(frozen=True)
class NewPrompt:
    """A prompt that may begin with one in the cache; see `PromptRecord`.

    Attributes:
        full_prefill: whether it would be computed as a full prefill.
    """

    tokens: Tensor
    question_start: int
    tenant: str
    lora: str
    method: str
    full_prefill: bool

    def reusable(self, earlier: PromptRecord) -> int:
        """Return how many of its tokens can be taken from an earlier prompt."""
        alike = earlier.method == self.method and earlier.question_start == self.question_start
        from_any = earlier.exact and self.full_prefill
        ours = (earlier.tenant, earlier.lora) == (self.tenant, self.lora)
        if not ours or not (alike or from_any):
            return 0
        shared = shared_tokens(earlier.tokens, self.tokens)
        if shared < earlier.prompt_tokens and not from_any:
            return 0
        # Without cached logits the last token is computed for its own.
        whole = shared == len(self.tokens) == earlier.prompt_tokens
        return shared if whole else min(shared, len(self.tokens) - 1)

    def shared_history(self, earlier: PromptRecord, tokens: int) -> int:
        """Return how many of its question's first `tokens` tokens begin an earlier prompt's."""
        ours = (earlier.tenant, earlier.lora) == (self.tenant, self.lora)
        if not ours or not (earlier.method == self.method or earlier.exact):
            return 0
        first = self.question_start
        shared = shared_tokens(
            earlier.tokens[earlier.question_start :], self.tokens[first : first + tokens]
        )
        asked = earlier.prompt_tokens - earlier.question_start
        return shared if shared > asked or 0 < earlier.history <= shared else 0


def holds(tokens: Tensor, text: Sequence[int]) -> bool:
    """Return whether a text's token ids stand in `tokens` `[n]` int64 one after the other."""
    if not text:
        return False
    whole, part = tokens.numpy().tobytes(), array("q", text).tobytes()
    at = whole.find(part)
    while at >= 0 and at % 8:  # not at the border of a number
        at = whole.find(part, at + 1)
    return at >= 0


def shared_tokens(a: Tensor, b: Tensor) -> int:
    """Return the number of first tokens that are the same."""
    shorter = min(len(a), len(b))
    different = (a[:shorter] != b[:shorter]).nonzero()
    return int(different[0]) if len(different) else shorter


def replaces(later: PromptRecord, earlier: PromptRecord) -> bool:
    """Return whether a prompt serves whatever an earlier one does: it begins with all of it."""
    return (
        (later.tenant, later.lora) == (earlier.tenant, earlier.lora)
        and later.method == earlier.method
        and (later.exact or later.prompt_tokens == earlier.prompt_tokens)
        and shared_tokens(later.tokens, earlier.tokens) == len(earlier.tokens)
    )


P = TypeVar("P", bound=PromptRecord)


class PromptIndex(Generic[P]):
    """Finds the prompt that another one shares most tokens with. Not thread-safe."""

    def __init__(self) -> None:
        self._hashes: dict[P, list[bytes]] = {}  # the oldest first
        self._prompts: dict[bytes, list[P]] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._hashes))

    @property
    def oldest(self) -> P:
        """The prompt that was added first."""
        return next(iter(self._hashes))

    def add(self, prompt: P) -> None:
        """Add a prompt."""
        hashes = self._hashes[prompt] = _hashes(prompt.tenant, prompt.tokens)
        for each in hashes:
            self._prompts.setdefault(each, []).append(prompt)

    def remove(self, prompt: P) -> None:
        """Remove a prompt, if it is there."""
        for each in self._hashes.pop(prompt, ()):
            others = self._prompts[each]
            others.remove(prompt)
            if not others:
                del self._prompts[each]

    def find(self, wanted: NewPrompt) -> tuple[P, int] | None:
        """Return the prompt that `wanted` can take most tokens of, and their number."""
        best: tuple[P, int] | None = None
        compared: set[P] = set()
        for each in reversed(_hashes(wanted.tenant, wanted.tokens)):
            for prompt in self._prompts.get(each, ()):
                if prompt in compared:
                    continue
                compared.add(prompt)
                tokens = wanted.reusable(prompt)
                if tokens >= MIN_TOKENS and (best is None or tokens > best[1]):
                    best = prompt, tokens
            if best is not None:  # all others share fewer tokens
                return best
        return None

    def holding(self, texts: Collection[Sequence[int]]) -> list[P]:
        """Return the prompts that hold one of these texts."""
        return [p for p in self._hashes if any(holds(p.tokens, ids) for ids in texts)]

    def forget(self, texts: Collection[Sequence[int]]) -> None:
        """Remove every prompt that holds one of these texts."""
        for prompt in self.holding(texts):
            self.remove(prompt)


def _hashes(tenant: str, tokens: Tensor) -> list[bytes]:
    """Return hashes of the tenant and the first 64, 128, ... tokens."""
    running = hashlib.blake2b(tenant.encode() + b"\0", digest_size=16)
    hashes = []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        running.update(tokens[end - BLOCK : end].numpy().tobytes())
        hashes.append(running.digest())
    return hashes
