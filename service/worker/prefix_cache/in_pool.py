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

from collections.abc import Collection, Iterable, Sequence

from service.worker.kv.pool import KVPool
from service.worker.prefix_cache.prompts import (
    MIN_HISTORY,
    MIN_TOKENS,
    CachedPrompt,
    History,
    NewPrompt,
    Reuse,
)

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
        """Return the longest part of a prompt's earlier turns, the first tokens of its question,
        that one in the cache has left."""
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
