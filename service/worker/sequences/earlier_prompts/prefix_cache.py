"""Prompts in the KV pool, for requests that begin with the same tokens: answered ones, which stay
there, and those that are being answered.

    kept      S │ D_1 │ D_2 │ Q_1 │ answer
    request   S │ D_1 │ D_2 │ Q_1 │ answer │ Q_2      only Q_2 is computed
    request   S │ D_1 │ D_2 │ Q_1                     nothing is computed: the logits are kept, too
    request   S │ D_1 │ D_3 │ Q_3                     full prefill: only D_3 and Q_3 are computed

What may be reused:

- **Rows of a full prefill**, by a request that would compute a full prefill anyway: as many tokens
  as are the same.
- **A prompt of any method as a whole**, by a request for the same method whose prompt begins with
  it: the same prompt again, or the next turn of its conversation. The rows that the first question
  had repaired stay as they are.

KV is copied, so that several requests may continue from one prompt. Kept prompts lie in memory that
no sequence needs: when one does, they make room, the least recently used one first. Prompts that
repeat an earlier one are also written to disk (`prompt_writer`), if that is on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

import torch

from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.methods.bases.fusion import Reads
from service.worker.sequences.earlier_prompts.index import PromptIndex
from service.worker.sequences.kept_prompt import (
    MIN_TOKENS,
    EarlierPrompt,
    KeptPrompt,
    Place,
    Reuse,
    Wanted,
    holds,
    prompt_tokens,
    replaces,
)
from service.worker.sequences.sequence import EngineSequence

MAX_PROMPTS = 64
"""A request is compared with every kept prompt, and each has logits of its own."""
MAX_GIVEN_UP = 512
"""Most prompts of which it is remembered that they were asked, after their KV was given up."""


class PrefixCache:
    """The kept prompts of one engine.

    Args:
        pool: holds their KV; it asks for memory by `make_room`.
        stores: whether prompts that repeat earlier ones are noted in `to_store`.

    Attributes:
        on: whether anything is kept.
        to_store: kept prompts that may be worth storing on disk, the next to be given up first.
        counts: how many prompts took KV from an earlier one, by where it was.
    """

    def __init__(self, pool: KVPool, *, on: bool, stores: bool = False) -> None:
        self._pool = pool
        self.on = on
        self._stores = stores
        self._prompts: list[KeptPrompt] = []  # the most recently used one last
        self._given_up: PromptIndex[EarlierPrompt] = PromptIndex()
        self.to_store: deque[KeptPrompt] = deque()
        self.counts: Counter[Place] = Counter({"pool": 0, "prompts": 0})
        pool.on_full = self.make_room

    @property
    def kept_share(self) -> float:
        """Share of the pool that kept prompts lie in, 0 to 1. For any thread."""
        return sum(p.kv.reserved_tokens for p in list(self._prompts)) / max(1, self._pool.tokens)

    def find(
        self, sequence: EngineSequence, running: Iterable[EngineSequence] = ()
    ) -> Reuse | None:
        """What a request can reuse, which is then the last to be given up.

        Args:
            running: sequences that are being answered: their prompts can be continued, too.
        """
        best = self.look_up(sequence, running)
        if best is not None and best.kept in self._prompts:
            self._prompts.remove(best.kept)
            self._prompts.append(best.kept)
        if best is not None:
            sequence.repeats |= best.kept.is_repeated(best.tokens)
        if self._stores and not sequence.repeats and (prompt := wanted(sequence)) is not None:
            found = self._given_up.find(prompt)
            sequence.repeats = found is not None and found[0].is_repeated(found[1])
        return best

    def look_up(
        self, sequence: EngineSequence, running: Iterable[EngineSequence] = ()
    ) -> Reuse | None:
        """What a request could reuse: of several prompts the one with most tokens."""
        prompt = wanted(sequence) if self.on else None
        if prompt is None:
            return None
        best: Reuse | None = None
        answering = (kept for other in running if (kept := _kept(other)) is not None)
        restored = [] if sequence.restored is None else [sequence.restored]
        for kept in (*restored, *answering, *self._prompts):
            reused = prompt.reusable(kept)
            if reused >= MIN_TOKENS and (best is None or reused >= best.tokens):
                best = Reuse(kept, reused)
        return best

    def keep(self, sequence: EngineSequence) -> bool:
        """Takes over the KV of a sequence that is answered; False if it is not worth keeping."""
        kept = _kept(sequence) if self.on else None
        if kept is None:
            return False
        for other in [p for p in self._prompts if replaces(kept, p)]:
            self._drop(other)
        while len(self._prompts) >= MAX_PROMPTS:
            self._give_up(self._prompts[0])
        self._prompts.append(kept)
        if self._stores and kept.repeats:
            self.to_store.append(kept)
        return True

    def count(self, reuse: Reuse | None) -> None:
        """Counts a prompt that starts, if it takes KV from an earlier one."""
        if reuse is not None:
            self.counts[reuse.kept.place] += 1

    def make_room(self, tokens: int) -> bool:
        """Gives up prompts until a sequence of so many tokens fits; none if it cannot fit."""
        reclaimable = self._pool.free_tokens + sum(p.kv.reserved_tokens for p in self._prompts)
        if reclaimable < tokens:
            return False
        while not self._pool.can_reserve(tokens):
            if not self._prompts:
                return False
            self._give_up(self._prompts[0])
        return True

    def forget(self, texts: Collection[Sequence[int]]) -> None:
        """Gives up every prompt that holds one of these texts, because it is being deleted."""
        for kept in [p for p in self._prompts if any(holds(p.tokens, ids) for ids in texts)]:
            self._drop(kept)
        self._given_up.forget(texts)

    def forget_all(self) -> None:
        """Gives up every prompt."""
        for kept in list(self._prompts):
            self._drop(kept)
        self._given_up = PromptIndex()

    def _give_up(self, kept: KeptPrompt) -> None:
        """Drops a prompt for its memory, and remembers that it was asked."""
        self._drop(kept)
        if self._stores:
            while len(self._given_up) >= MAX_GIVEN_UP:
                self._given_up.remove(self._given_up.oldest)
            self._given_up.add(EarlierPrompt(**kept.facts))

    def _drop(self, kept: KeptPrompt) -> None:
        self._prompts.remove(kept)
        if kept in self.to_store:
            self.to_store.remove(kept)
        assert isinstance(kept.kv, SequenceKV)
        kept.kv.release()


def wanted(sequence: EngineSequence) -> Wanted | None:
    """A sequence's prompt, if it may continue an earlier one; None if not."""
    if not _takes_part(sequence):
        return None
    request = sequence.request
    tokens = prompt_tokens(request)
    return Wanted(
        tokens=tokens,
        question_start=len(tokens) - len(request.question),
        tenant=request.tenant,
        lora=sequence.lora_fingerprint,
        method=_method(sequence),
        full_prefill=sequence.fusion.reads is Reads.NOTHING or not request.documents,
    )


def _kept(sequence: EngineSequence) -> KeptPrompt | None:
    """A sequence's prompt and the answer so far, if others may continue it; None if not."""
    kv, layout = sequence.kv, sequence.layout
    if not _takes_part(sequence) or kv is None or layout is None:
        return None
    if sequence.logits is None or sequence.deleted or sequence.held_in_part:
        return None
    if kv.filled_tokens < MIN_TOKENS:
        return None
    answer = sequence.tokens[: kv.filled_tokens - sequence.prompt_tokens]
    return KeptPrompt(
        tokens=torch.cat([prompt_tokens(sequence.request), torch.tensor(answer).long()]),
        prompt_tokens=sequence.prompt_tokens,
        system_tokens=len(sequence.request.system),
        question_start=layout.question_start,
        tenant=sequence.request.tenant,
        lora=sequence.lora_fingerprint,
        method=_method(sequence),
        exact=_is_exact(sequence),
        logits=sequence.logits,
        kv=kv,
        repeats=sequence.repeats,
    )


def _takes_part(sequence: EngineSequence) -> bool:
    request = sequence.request
    if not request.prefix_cache or sequence.eviction is not None or request.token_fates:
        return False
    return sequence.fusion.reads is not Reads.PARTS or not request.documents


def _is_exact(sequence: EngineSequence) -> bool:
    if sequence.reuse is not None:
        return sequence.reuse.kept.exact
    return not sequence.reuses_documents


def _method(sequence: EngineSequence) -> str:
    """What decides how the prompt is computed, as text that a restart does not change."""
    fusion, request = sequence.admitted_fusion, sequence.request
    name = type(fusion).__module__
    return f"{name} {fusion!r} {sequence.auto_ratio} {request.prefix_mode} {request.cold}"
