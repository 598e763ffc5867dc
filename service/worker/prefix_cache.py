"""The prefix cache in the KV pool: prompts that were answered, or are being answered, for requests
that begin with the same tokens.

    cached    S │ D_1 │ D_2 │ Q_1 │ answer
    request   S │ D_1 │ D_2 │ Q_1 │ answer │ Q_2      only Q_2 is computed
    request   S │ D_1 │ D_2 │ Q_1                     nothing: its logits are cached, too
    request   S │ D_1 │ D_3 │ Q_3                     full prefill: only D_3 and Q_3 are computed

Rows of a full prefill are reused by a request that would compute a full prefill anyway, as many as
are the same. A prompt of any other method is reused as a whole, by a request for the same method
that begins with it; the rows that the first question had repaired stay as they are.

KV is copied, so that several requests may continue from one prompt. Prompts lie in memory that no
sequence needs: when one does, they make room, the least recently used one first.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.worker.kv.pool import KVPool, SequenceKV

POOL = "pool"
"""What reports and metrics call the place of KV that an earlier prompt left."""
MIN_TOKENS = 32
"""Copying fewer gains nothing."""
MIN_HISTORY = 64
"""Tokens of earlier turns: to compute fewer takes hardly any time."""


@dataclass(frozen=True, eq=False)
class CachedPrompt:
    """A prompt in the cache with its KV."""

    tokens: Tensor  # whose KV there is: the prompt's, then the answer's `[m]` int64
    prompt_tokens: int  # how many of them are the prompt's
    question_start: int  # where its Q begins
    # who asked it, and who may continue it: a tenant, or those of it who may read the same
    # (`Generate.sharers`)
    tenant: str
    lora: str  # fingerprint of the LoRA adapter that it was computed with; "" for the base model
    method: str  # how it was computed; equal for requests that would be computed alike
    exact: bool  # whether its KV is that of a full prefill
    logits: Tensor  # of the first answer token `[vocabulary]`
    kv: SequenceKV
    history: int = 0  # first tokens of its Q that are earlier turns
    # what other prompts held before the earlier turns that it took from them, as token ids `[m]`
    # each: its KV has seen them, though it does not hold them
    seen: tuple[Tensor, ...] = ()

    def has_seen(self, texts: Collection[Sequence[int]]) -> bool:
        """Return whether it holds one of these texts, or its earlier turns have seen one."""
        return any(holds(tokens, ids) for tokens in (self.tokens, *self.seen) for ids in texts)

    def replaces(self, earlier: CachedPrompt) -> bool:
        """Return whether it serves whatever an earlier one does: it begins with all of it."""
        return (
            (self.tenant, self.lora, self.method) == (earlier.tenant, earlier.lora, earlier.method)
            and (self.exact or self.prompt_tokens == earlier.prompt_tokens)
            and shared_tokens(self.tokens, earlier.tokens) == len(earlier.tokens)
        )


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
class History(Reuse):
    """Earlier turns: the first `tokens` tokens of a prompt's question stand in an earlier prompt,
    whose question begins with them, and goes on in its answer."""

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
    """A prompt that may begin with one in the cache; see `CachedPrompt`."""

    tokens: Tensor
    question_start: int
    tenant: str
    lora: str
    method: str
    full_prefill: bool  # whether it would be computed as a full prefill

    def reusable(self, earlier: CachedPrompt) -> int:
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
        reused = shared if whole else min(shared, len(self.tokens) - 1)
        return earlier.kv.states.resumable(reused, len(earlier.tokens))

    def shared_history(self, earlier: CachedPrompt, tokens: int) -> int:
        """Return how many of its question's first `tokens` tokens begin an earlier prompt's."""
        ours = (earlier.tenant, earlier.lora) == (self.tenant, self.lora)
        if not ours or not (earlier.method == self.method or earlier.exact):
            return 0
        if earlier.kv.states.live:  # which have seen all that stood before
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


MAX_PROMPTS = 64
"""A request is compared with every prompt, and each has logits of its own."""


class PrefixCache:
    """The prefix cache of one engine, in its KV pool, which asks for memory by `make_room`."""

    def __init__(self, pool: KVPool, *, on: bool) -> None:
        self._pool = pool
        self.on = on
        self._prompts: list[CachedPrompt] = []  # the most recently used one last
        self.continued = 0  # how many prompts took KV from an earlier one
        pool.on_full = self.make_room

    @property
    def share(self) -> float:
        """Share of the pool that these prompts lie in, 0 to 1. For any thread."""
        return sum(p.kv.reserved_tokens for p in list(self._prompts)) / max(1, self._pool.tokens)

    def find(self, prompt: NewPrompt, others: Iterable[CachedPrompt] = ()) -> Reuse | None:
        """Return what a prompt can reuse, which is then the last to be evicted."""
        best = self.look_up(prompt, others)
        if best is not None:
            self.touch(best.prompt)
        return best

    def look_up(self, prompt: NewPrompt, others: Iterable[CachedPrompt] = ()) -> Reuse | None:
        """Return what a prompt could reuse: of several prompts the one with most tokens."""
        best: Reuse | None = None
        for cached in (*others, *self._prompts):
            reused = prompt.reusable(cached)
            if reused >= MIN_TOKENS and (best is None or reused >= best.tokens):
                best = Reuse(cached, reused)
        return best

    def touch(self, prompt: CachedPrompt) -> None:
        """Let one of the prompts be the last to be evicted."""
        if prompt in self._prompts:
            self._prompts.remove(prompt)
            self._prompts.append(prompt)

    def look_up_history(self, prompt: NewPrompt, tokens: int) -> History | None:
        """Return the longest part of a prompt's first turns, that many tokens, which one has
        left."""
        best: History | None = None
        for cached in self._prompts:
            shared = prompt.shared_history(cached, tokens)
            if shared >= MIN_HISTORY and (best is None or shared >= best.tokens):
                best = History(cached, shared)
        return best

    def keep(self, prompt: CachedPrompt) -> None:
        """Take over an answered prompt and its KV."""
        for other in [p for p in self._prompts if prompt.replaces(p)]:
            self._drop(other)
        while len(self._prompts) >= MAX_PROMPTS:
            self._drop(self._prompts[0])
        self._prompts.append(prompt)

    def make_room(self, tokens: int) -> bool:
        """Evict prompts until a sequence of so many tokens fits; none if it cannot fit."""
        reclaimable = self._pool.free_tokens + sum(p.kv.reserved_tokens for p in self._prompts)
        if reclaimable < tokens:
            return False
        while not self._pool.can_reserve(tokens):
            if not self._prompts:
                return False
            self._drop(self._prompts[0])
        return True

    def forget(self, texts: Collection[Sequence[int]]) -> None:
        """Drop every prompt that holds one of these texts, because it is being deleted."""
        for prompt in [p for p in self._prompts if p.has_seen(texts)]:
            self._drop(prompt)

    def forget_all(self) -> None:
        """Drop every prompt."""
        for prompt in list(self._prompts):
            self._drop(prompt)

    def _drop(self, prompt: CachedPrompt) -> None:
        self._prompts.remove(prompt)
        prompt.kv.release()
