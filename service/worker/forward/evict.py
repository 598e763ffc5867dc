"""Applies an eviction method to a sequence whose prompt is filled: choose per layer, compact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.kv.pool import SequenceKV
from service.worker.methods.eviction.base import EvictionMethod, PromptAttention
from service.worker.model.adapters.base import DecoderAdapter


@dataclass(frozen=True)
class Evicted:
    """coverage: share of the prompt's tokens that some head of some layer kept."""

    coverage: float


def evict(
    adapter: DecoderAdapter,
    model: ModelFacts,
    layout: PromptLayout,
    kv: SequenceKV,
    method: EvictionMethod,
    observed: Sequence[Tensor],
    room: int,
    *,
    asked: int | None = None,
    watch: Callable[[int, Sequence[Tensor]], None] | None = None,
) -> Evicted:
    """Shrink every layer to what `method` keeps, with `room` for tokens still to come.

    observed: per layer what `method.observe` gave. asked: tokens of the prompt that was asked for,
    where `method` started over and `layout` is what it chose of it. Then all of that stays, and the
    rows that the longer prompt had reserved are given back. watch: told what each layer keeps.
    """
    if asked is not None:
        everything = [layout.all_rows] * adapter.kv_heads
        for layer in range(adapter.layers):
            kv.keep(layer, everything, room)
        return Evicted(layout.tokens / asked)
    if not method.applies(layout):
        return Evicted(1.0)
    kept_before = torch.zeros(layout.tokens, dtype=torch.long, device=layout.ids.device)
    for layer in range(adapter.layers):
        k, _ = kv.prompt_layer(layer, layout.tokens)
        view = PromptAttention(layer, layout, k, observed[layer], kept_before, adapter.scale, model)
        kept = method.keep(view)
        kv.keep(layer, kept, room)
        if watch is not None:
            watch(layer, kept)
        here = torch.zeros_like(kept_before)
        here[torch.cat(kept)] = 1
        # Not in place: a view handed out earlier must not change.
        kept_before = kept_before + here
    return Evicted(float((kept_before > 0).float().mean()))
