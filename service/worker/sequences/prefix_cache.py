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
no sequence needs: when one does, they make room, the least recently used one first.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from service.worker.core.request import Request
from service.worker.kv.pool import KVPool
from service.worker.methods.bases.fusion import FusionMethod, Reads
from service.worker.sequences.sequence import KeptPrompt, Reuse, Sequence

MAX_PROMPTS = 64
"""A request is compared with every kept prompt, and each has logits of its own."""
MIN_TOKENS = 32
"""Copying fewer gains nothing."""


class PrefixCache:
    """The kept prompts of one engine.

    Args:
        pool: holds their KV; it asks for memory by `make_room`.

    Attributes:
        on: whether anything is kept.
    """

    def __init__(self, pool: KVPool, *, on: bool) -> None:
        self._pool = pool
        self.on = on
        self._prompts: list[KeptPrompt] = []  # the most recently used one last
        pool.on_full = self.make_room

    @property
    def kept_share(self) -> float:
        """Share of the pool that kept prompts lie in, 0 to 1. For any thread."""
        return sum(p.kv.reserved_tokens for p in list(self._prompts)) / max(1, self._pool.tokens)

    def find(self, sequence: Sequence, running: Iterable[Sequence] = ()) -> Reuse | None:
        """What a request can reuse, which is then the last to be given up.

        Args:
            running: sequences that are being answered: their prompts can be continued, too.
        """
        best = self.look_up(sequence, running)
        if best is not None and best.kept in self._prompts:
            self._prompts.remove(best.kept)
            self._prompts.append(best.kept)
        return best

    def look_up(self, sequence: Sequence, running: Iterable[Sequence] = ()) -> Reuse | None:
        """What a request could reuse: of several prompts the one with most tokens."""
        if not self.on or not _takes_part(sequence):
            return None
        tokens = prompt_tokens(sequence.request)
        best: Reuse | None = None
        answering = (kept for other in running if (kept := _kept(other)) is not None)
        for kept in (*answering, *self._prompts):
            reused = _reusable(kept, sequence, tokens)
            if reused >= MIN_TOKENS and (best is None or reused >= best.tokens):
                best = Reuse(kept, reused)
        return best

    def keep(self, sequence: Sequence) -> bool:
        """Takes over the KV of a sequence that is answered; False if it is not worth keeping."""
        kept = _kept(sequence) if self.on else None
        if kept is None:
            return False
        for other in [p for p in self._prompts if _continues(kept, p)]:
            self._drop(other)
        while len(self._prompts) >= MAX_PROMPTS:
            self._drop(self._prompts[0])
        self._prompts.append(kept)
        return True

    def make_room(self, tokens: int) -> bool:
        """Gives up prompts until a sequence of so many tokens fits; none if it cannot fit."""
        reclaimable = self._pool.free_tokens + sum(p.kv.reserved_tokens for p in self._prompts)
        if reclaimable < tokens:
            return False
        while not self._pool.can_reserve(tokens):
            if not self._prompts:
                return False
            self._drop(self._prompts[0])
        return True

    def forget(self, texts: Collection[Many[int]]) -> None:
        """Gives up every prompt that holds one of these texts, because it is being deleted."""
        for kept in [p for p in self._prompts if any(holds(p.tokens, ids) for ids in texts)]:
            self._drop(kept)

    def _drop(self, kept: KeptPrompt) -> None:
        self._prompts.remove(kept)
        kept.kv.release()


def prompt_tokens(request: Request) -> Tensor:
    """Token ids of a request's prompt `[n]` int64 in host memory."""
    ids = array("q", request.system)
    for document in request.documents:
        ids.extend(document.ids)
    ids.extend(request.question)
    return torch.tensor(ids, dtype=torch.long)


def holds(tokens: Tensor, text: Many[int]) -> bool:
    """Whether a text's token ids stand in `tokens` `[n]` int64 one after the other."""
    if not text:
        return False
    whole, part = tokens.numpy().tobytes(), array("q", text).tobytes()
    at = whole.find(part)
    while at >= 0 and at % 8:  # not at the border of a number
        at = whole.find(part, at + 1)
    return at >= 0


def _kept(sequence: Sequence) -> KeptPrompt | None:
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
        question_start=layout.question_start,
        tenant=sequence.request.tenant,
        lora=sequence.lora,
        method=_method(sequence),
        exact=_is_exact(sequence),
        logits=sequence.logits,
        kv=kv,
    )


def _takes_part(sequence: Sequence) -> bool:
    request = sequence.request
    if not request.prefix_cache or sequence.eviction is not None or request.token_fates:
        return False
    return sequence.fusion.reads is not Reads.PARTS or not request.documents


def _is_exact(sequence: Sequence) -> bool:
    if sequence.reuse is not None:
        return sequence.reuse.kept.exact
    return not sequence.reuses_documents


def _method(sequence: Sequence) -> tuple[FusionMethod, bool, str, str]:
    request = sequence.request
    return sequence.admitted_fusion, sequence.auto_ratio, request.prefix_mode, request.cold


def _reusable(kept: KeptPrompt, sequence: Sequence, tokens: Tensor) -> int:
    """How many tokens of the prompt `tokens` can be taken from a kept one."""
    request = sequence.request
    if (kept.tenant, kept.lora) != (request.tenant, request.lora):
        return 0
    shared = _shared(kept.tokens, tokens)
    question_start = len(tokens) - len(request.question)
    continued = shared >= kept.prompt_tokens and kept.question_start == question_start
    same = continued and kept.method == _method(sequence)
    full_prefill = sequence.fusion.reads is Reads.NOTHING or not request.documents
    if not same and not (kept.exact and full_prefill):
        return 0
    # Without kept logits the last token is computed for its own.
    return shared if shared == len(tokens) == kept.prompt_tokens else min(shared, len(tokens) - 1)


def _shared(a: Tensor, b: Tensor) -> int:
    """Number of first tokens that are the same."""
    shorter = min(len(a), len(b))
    different = (a[:shorter] != b[:shorter]).nonzero()
    return int(different[0]) if len(different) else shorter


def _continues(kept: KeptPrompt, earlier: KeptPrompt) -> bool:
    """Whether a prompt serves whatever an earlier one does, because it begins with all of it."""
    return (
        (kept.tenant, kept.lora) == (earlier.tenant, earlier.lora)
        and kept.method == earlier.method
        and (kept.exact or kept.prompt_tokens == earlier.prompt_tokens)
        and _shared(kept.tokens, earlier.tokens) == len(earlier.tokens)
    )
