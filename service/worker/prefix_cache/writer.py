"""Writes prompts of the KV pool to disk in spare time, before they are evicted.

Not every answer is written, but prompts that repeat an earlier one: the second turn of a
conversation and those after it, and what is asked of the same documents again. A prompt whose
beginning is already stored is written again only when it has become much longer, so a conversation
of many turns is not written once for every turn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from service.worker.kv.pool import SequenceKV
from service.worker.prefix_cache.in_pool import PrefixCache
from service.worker.prefix_cache.on_disk import DiskPrefixCache
from service.worker.prefix_cache.prompts import CachedPrompt, NewPrompt, PromptRecord

STORED_SHARE = 0.75
"""A prompt is not written if this share of it is stored already."""


class PrefixWriter:
    """Copies prompts out of the pool, one layer at a time, and has them written.

    Only one is in memory at any time.

    Args:
        worth: says whether reading a prompt would be faster than computing it.
    """

    def __init__(
        self, cache: PrefixCache, store: DiskPrefixCache, worth: Callable[[PromptRecord], bool]
    ) -> None:
        self._cache = cache
        self._store = store
        self._worth = worth
        self._copying: CachedPrompt | None = None
        self._k: list[Tensor] = []
        self._v: list[Tensor] = []
        self._writing: Future[bool] | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to copy right now; a write may still be under way."""
        if self._writing is not None and not self._writing.done():
            return True
        return self._copying is None and not self._cache.to_store

    def advance(self) -> None:
        """Copy one layer of a prompt, or choose the next prompt."""
        prompt = self._copying
        if prompt is None:
            prompt = self._cache.to_store.popleft()
            if self._wanted(prompt):
                self._copying = prompt
            return
        if not prompt.kv.reserved_tokens:  # evicted or deleted meanwhile
            self._stop()
            return
        assert isinstance(prompt.kv, SequenceKV)
        layer, tokens = len(self._k), len(prompt.tokens)
        for target, rows in zip(
            (self._k, self._v), prompt.kv.prompt_layer(layer, tokens), strict=True
        ):
            heads, _, size = rows.shape
            copy = torch.empty((tokens, heads, size), dtype=rows.dtype)
            target.append(copy.copy_(rows.transpose(0, 1)))
        if len(self._k) == len(prompt.kv.start):
            logits = prompt.logits.cpu()
            earlier = PromptRecord(**prompt.facts)
            self._writing = self._store.write(earlier, logits, self._k, self._v)
            self._stop()

    def fail_current(self, error: Exception) -> None:
        """Give up the prompt that is being copied."""
        self._stop()

    def _stop(self) -> None:
        self._copying, self._k, self._v = None, [], []

    def _wanted(self, prompt: CachedPrompt) -> bool:
        """Return whether it is worth writing, and most of it is not stored yet."""
        itself = NewPrompt(
            tokens=prompt.tokens,
            question_start=prompt.question_start,
            tenant=prompt.tenant,
            lora=prompt.lora,
            method=prompt.method,
            full_prefill=prompt.exact,
        )
        stored = self._store.look_up(itself)
        if stored is not None and stored[1] >= STORED_SHARE * len(prompt.tokens):
            return False
        return self._worth(prompt)
