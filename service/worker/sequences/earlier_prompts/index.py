"""Finds the earlier prompt that another prompt shares most tokens with.

Every prompt is entered under the hash of its first 64, 128, ... tokens, so only prompts that share
many tokens with the wanted one are compared with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from service.worker.sequences.kept_prompt import MIN_TOKENS, EarlierPrompt, Wanted, holds

BLOCK = 64
"""Tokens between two hashes. A shorter prompt is not found."""

P = TypeVar("P", bound=EarlierPrompt)


class PromptIndex(Generic[P]):
    """Earlier prompts by their first tokens. Not thread-safe."""

    def __init__(self) -> None:
        self._hashes: dict[P, list[bytes]] = {}  # the oldest first
        self._prompts: dict[bytes, list[P]] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._hashes))

    @property
    def oldest(self) -> P:
        """The one that was added first."""
        return next(iter(self._hashes))

    def add(self, prompt: P) -> None:
        hashes = self._hashes[prompt] = _hashes(prompt.tenant, prompt.tokens)
        for each in hashes:
            self._prompts.setdefault(each, []).append(prompt)

    def remove(self, prompt: P) -> None:
        """Removes a prompt, if it is there."""
        for each in self._hashes.pop(prompt, ()):
            others = self._prompts[each]
            others.remove(prompt)
            if not others:
                del self._prompts[each]

    def find(self, wanted: Wanted) -> tuple[P, int] | None:
        """The prompt that `wanted` can take most tokens of, and their number."""
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
        """The prompts that hold one of these texts."""
        return [p for p in self._hashes if any(holds(p.tokens, ids) for ids in texts)]

    def forget(self, texts: Collection[Sequence[int]]) -> None:
        """Removes every prompt that holds one of these texts."""
        for prompt in self.holding(texts):
            self.remove(prompt)


def _hashes(tenant: str, tokens: Tensor) -> list[bytes]:
    """Hashes of the tenant and the first 64, 128, ... tokens."""
    running = hashlib.blake2b(tenant.encode() + b"\0", digest_size=16)
    hashes = []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        running.update(tokens[end - BLOCK : end].numpy().tobytes())
        hashes.append(running.digest())
    return hashes
