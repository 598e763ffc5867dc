"""What a sequence takes from the prefix cache, and what it leaves there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.kv.pool import SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.fusion import Reads
from kvstitch.service.worker.methods.fusion.pie import Method as QuestionOnly
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.prefix_cache import (
    MIN_TOKENS,
    CachedPrompt,
    History,
    NewPrompt,
    PrefixCache,
    Reuse,
)
from kvstitch.service.worker.sequences.sequence import EngineSequence, prompt_ids
from kvstitch.service.worker.steps import Steps


def find_reuse(
    cache: PrefixCache, sequence: EngineSequence, running: Iterable[EngineSequence] = ()
) -> Reuse | None:
    """Return what a sequence can reuse, of the cache or of those that are being answered."""
    prompt = new_prompt(sequence) if cache.on else None
    if prompt is None:
        return None
    others = (cached_prompt(other) for other in running)
    return cache.find(prompt, [other for other in others if other is not None])


def find_history(cache: PrefixCache, sequence: EngineSequence) -> History | None:
    """Return what a sequence that continues no prompt can take of its earlier turns."""
    found = look_up_history(cache, sequence)
    if found is not None:
        cache.touch(found.prompt)
    return found


def look_up_history(cache: PrefixCache, sequence: EngineSequence) -> History | None:
    """As `find_history`, and changes nothing."""
    prompt = new_prompt(sequence) if cache.on and sequence.asked.history else None
    return None if prompt is None else cache.look_up_history(prompt, sequence.asked.history)


def new_prompt(sequence: EngineSequence) -> NewPrompt | None:
    """Return a sequence's prompt, if it may continue an earlier one; None if not."""
    if not _takes_part(sequence):
        return None
    request = sequence.asked.request
    tokens = prompt_ids(request)
    return NewPrompt(
        tokens=tokens,
        question_start=len(tokens) - len(request.question),
        tenant=request.sharers,
        lora=sequence.asked.lora_fingerprint,
        method=_method(sequence),
        full_prefill=sequence.fusion.reads is Reads.NOTHING or not request.documents,
    )


def cached_prompt(sequence: EngineSequence) -> CachedPrompt | None:
    """Return a sequence's prompt and the answer so far, if others may continue it; None if not."""
    kv, layout = sequence.kv, sequence.layout
    if not _takes_part(sequence) or kv is None or layout is None:
        return None
    if sequence.prefill.steps is not None:  # its KV is being written
        return None
    if sequence.logits is None or sequence.deleted:
        return None
    if not sequence.work.entries == layout.tokens == sequence.asked.prompt_tokens:  # held in part
        return None
    if kv.filled_tokens < MIN_TOKENS:
        return None
    answer = sequence.tokens[: kv.filled_tokens - sequence.asked.prompt_tokens]
    return CachedPrompt(
        tokens=torch.cat([prompt_ids(sequence.asked.request), torch.tensor(answer).long()]),
        prompt_tokens=sequence.asked.prompt_tokens,
        question_start=layout.history_start,
        tenant=sequence.asked.request.sharers,
        lora=sequence.asked.lora_fingerprint,
        method=_method(sequence),
        exact=sequence.exact,
        logits=sequence.logits,
        kv=kv,
        seen=seen_by(sequence),
        history=sequence.asked.request.history,
    )


def seen_by(sequence: EngineSequence) -> tuple[Tensor, ...]:
    """Return what else the KV of its earlier turns has seen."""
    if sequence.reuse is not None:
        return sequence.reuse.prompt.seen
    if sequence.history is None or not sequence.asked.repairs_history:
        return ()
    return sequence.history.seen


def _takes_part(sequence: EngineSequence) -> bool:
    request = sequence.asked.request
    if not request.prefix_cache or sequence.asked.eviction is not None or request.token_fates:
        return False
    return sequence.fusion.reads is not Reads.PARTS or not request.documents


def _method(sequence: EngineSequence) -> str:
    """Return what decides how the prompt is computed, as text that a restart does not change."""
    fusion, request = sequence.asked.fusion, sequence.asked.request
    name = type(fusion).__module__
    return f"{name} {fusion!r} {sequence.asked.auto_ratio} {request.prefix_mode} {request.cold}"


def continued_prefill(
    decoder: DecoderModel, layout: PromptLayout, kv: SequenceKV, reuse: Reuse
) -> Steps[PrefillResult]:
    """Return the steps of a prefill that computes only what comes after the reused tokens."""
    reuse.prompt.kv.copy_to(kv, reuse.tokens)
    return _prefill_rest(decoder, layout, kv, reuse)


def _prefill_rest(
    decoder: DecoderModel, layout: PromptLayout, kv: SequenceKV, reuse: Reuse
) -> Steps[PrefillResult]:
    if reuse.tokens == layout.tokens:
        nothing = torch.empty(0, dtype=torch.long, device=layout.ids.device)
        none = [0] * decoder.layers
        return PrefillResult(reuse.prompt.logits.clone(), [], none, nothing, 0.0, layout)
    rest = PromptLayout(layout.ids, (), question_start=reuse.tokens)
    result = yield from prefill(decoder, rest, [], QuestionOnly(), kv)
    return replace(result, layout=layout)


class HistoryKV:
    """KV of neighbouring tokens of a sequence, copied out of the pool at once, because the
    sequence may be evicted later; implements `CachedSegment`."""

    def __init__(self, decoder: DecoderModel, kv: SequenceKV, rows: slice) -> None:
        positions = torch.arange(rows.start, rows.stop, device=decoder.device)
        self._layers: list[tuple[Tensor, Tensor]] = []
        for layer in range(decoder.layers):
            k, v = (x[:, rows].transpose(0, 1) for x in kv.prompt_layer(layer, rows.stop))
            self._layers.append((decoder.ropes[layer].unrotate(k, positions), v.contiguous()))

    @classmethod
    def of(cls, decoder: DecoderModel, history: History) -> HistoryKV:
        """Copy what a prompt takes from an earlier one in the KV pool."""
        prompt = history.prompt
        assert isinstance(prompt.kv, SequenceKV), "only prompts in the pool are looked through"
        start = prompt.question_start
        return cls(decoder, prompt.kv, slice(start, start + history.tokens))

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]

    def state(self, layer: int) -> tuple[Tensor, str]:
        raise AssertionError("of a model without mixers")
