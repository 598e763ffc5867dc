"""The question's first pass over the stitched cache: which of its tokens does it look at?

Only the question's rows run (about one percent of a prefill), over cached keys at their global
positions; cold segments, whose keys do not exist yet, are not seen. One softmax serves both the
rows' own attention and the method's evidence. Afterwards every cached segment is in place at every
layer, so the layer loop that follows need not place it again. Pauses after every layer, so that it
can follow a cache that arrives layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.attention import attention_probabilities, weighted_values
from service.worker.flops import FlopCount
from service.worker.fusion.base import FusionMethod
from service.worker.layer_view import CachedSegment
from service.worker.layout import PromptLayout
from service.worker.place import PromptKV, place, write_rows
from service.worker.steps import Steps

# Question rows scored at once: bounds the [heads, rows, n] weights in fp32.
TILE = 64


def scout(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: FusionMethod,
    kv: PromptKV,
    flops: FlopCount,
    arrival: Callable[[int], Steps[None]] | None = None,
) -> Steps[Tensor]:
    """Evidence `[n]` fp32, summed over layers; zero at tokens of cold segments. `arrival` waits
    until the cache has a layer."""
    n, rows = layout.tokens, layout.question_rows
    key_positions = method.key_positions(layout)
    seen = layout.warm_rows
    everything = len(seen) == n
    evidence = torch.zeros(n, dtype=torch.float32, device=layout.ids.device)
    x = adapter.embed(layout.ids[rows])
    pairs = float(len(rows)) * len(seen)
    last_layer = adapter.layers - 1
    for layer in range(adapter.layers):
        if arrival is not None:
            yield from arrival(layer)
        k_all, v_all = kv.prompt_layer(layer, n)
        place(adapter, layout, cached, layer, key_positions, k_all, v_all)
        q, k, v = adapter.qkv(layer, x)
        q = adapter.rope.rotate(q, rows)
        write_rows(k_all, v_all, adapter.rope.rotate(k, rows), v, rows)
        keys, values = (k_all, v_all) if everything else (k_all[:, seen], v_all[:, seen])
        attended = []
        for a in range(0, len(rows), TILE):
            tile = slice(a, a + TILE)
            weights = attention_probabilities(
                q[tile], keys, rows[tile], adapter.scale, key_rows=None if everything else seen
            )
            found = method.scout(layer, weights, rows[tile], layout)
            if found is not None:
                evidence.index_add_(0, seen, found)
            if layer < last_layer:  # nobody reads what the last one would give
                attended.append(weighted_values(weights, values))
        flops.project(len(rows))
        flops.score(pairs)
        if layer < last_layer:
            x = adapter.finish(layer, x, torch.cat(attended))
            flops.score(pairs)  # weighting values costs what scoring does
            flops.finish(len(rows))
        yield None
    return evidence
