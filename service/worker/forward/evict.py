"""Applies an eviction method to a sequence whose prompt is filled: choose per layer, compact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.kv.pool import SequenceKV
from service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from service.worker.model.adapters.base import DecoderAdapter


def evict(
    adapter: DecoderAdapter,
    model: ModelFacts,
    kv: SequenceKV,
    method: EvictionMethod,
    *,
    layout: PromptLayout,
    observed: Sequence[Tensor],
    room: int,
    original_tokens: int | None = None,
    on_kept: Callable[[int, Sequence[Tensor]], None] | None = None,
) -> float:
    """Shrink every layer to what `method` keeps.

    Args:
        layout: the prompt that is in place.
        observed: per layer what `method.observe` gave.
        room: tokens that are still to come.
        original_tokens: tokens of the prompt that was asked for, where `method` started over and
            `layout` is what it chose of it. Then all of that stays, and the rows that the longer
            prompt had reserved are given back.
        on_kept: told what each layer keeps.

    Returns:
        Share of the prompt's tokens that some head of some layer kept.
    """
    if original_tokens is not None:
        everything = [layout.all_rows] * adapter.kv_heads
        for layer in range(adapter.layers):
            kv.keep(layer, everything, room)
        return layout.tokens / original_tokens
    if not method.applies(layout):
        return 1.0
    kept_before = torch.zeros(layout.tokens, dtype=torch.long, device=layout.ids.device)
    for layer in range(adapter.layers):
        k, _ = kv.prompt_layer(layer, layout.tokens)
        prompt = PromptAttention(
            layer=layer,
            layout=layout,
            k=k,
            observed=observed[layer],
            kept_before=kept_before,
            scale=adapter.scale,
            model=model,
        )
        kept = method.keep(prompt)
        kv.keep(layer, kept, room)
        if on_kept is not None:
            on_kept(layer, kept)
        here = torch.zeros_like(kept_before)
        here[torch.cat(kept)] = 1
        # Not in place: a view handed out earlier must not change.
        kept_before = kept_before + here
    return float((kept_before > 0).float().mean())
