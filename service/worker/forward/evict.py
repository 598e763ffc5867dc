"""Applies an eviction method to a sequence after prefill, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from service.worker.kv.pool import SequenceKV
from service.worker.layout import PromptLayout
from service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts


def evict(
    decoder: DecoderModel,
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
    """Shrink every layer of the cache to the entries that `method` keeps; return the share of the
    prompt's tokens that at least one head of one layer kept.

    `room` is the number of tokens still to be generated, for which KV stays reserved. If `method`
    started over with a shorter prompt (`layout`), all of it is kept and the KV that was reserved
    for the original one is released. `on_kept` gets each layer's number and kept token indices per
    KV head.
    """
    if original_tokens is not None:
        everything = [layout.all_rows] * decoder.kv_heads
        for layer in range(decoder.layers):
            kv.keep(layer, everything, room)
        return layout.tokens / original_tokens
    if not method.applies(layout):
        return 1.0
    kept_before = torch.zeros(layout.tokens, dtype=torch.long, device=layout.ids.device)
    for layer in range(decoder.layers):
        k, _ = kv.prompt_layer(layer, layout.tokens)
        prompt = PromptAttention(
            layer=layer,
            layout=layout,
            k=k,
            observed=observed[layer],
            kept_before=kept_before,
            scale=decoder.scale,
            rule=decoder.rules[layer],
            model=model,
        )
        kept = method.keep(prompt)
        kv.keep(layer, kept, room)
        if decoder.rules[layer].window is not None:
            kv.remember(layer, kept, layout.tokens)
        if on_kept is not None:
            on_kept(layer, kept)
        kept_here = torch.zeros_like(kept_before)
        kept_here[torch.cat(kept)] = 1
        # Not in place: earlier `PromptAttention`s hold the old tensor.
        kept_before = kept_before + kept_here
    return float((kept_before > 0).float().mean())
