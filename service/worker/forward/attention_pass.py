"""A pass of a few rows over the stitched cache, to measure which tokens they attend to.

Only these rows are computed (those of the question cost about one percent of a prefill), over
cached keys at their positions in the prompt. Uncached segments are not visible: their keys do not
exist yet. One softmax gives both the rows' attention and the scores. The pass pauses after every
layer, so it can run while the cache is still being loaded layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.forward.kv_placement import PromptKV, write_rows
from service.worker.layout import PromptLayout
from service.worker.methods.bases.dense import RowWeights, Sight
from service.worker.model.attention import attend_rows, attend_with_scores
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.flops import FlopCount
from service.worker.steps import Steps


@dataclass(frozen=True)
class AttentionPass:
    """One pass over one prompt.

    Attributes:
        kv: the prompt's KV cache.
        flops: the prompt's FLOP count, to which the pass adds its work.
        rows: prompt rows that are computed, ascending `[m]`.
        layers: layers whose attention counts; the pass ends after the last of them.
        weights: for a layer's number, how its attention becomes scores.
        sight: which keys the rows see, and which share their attention.
        place: called before each layer, to put its cached KV in place.
    """

    decoder: DecoderModel
    layout: PromptLayout
    kv: PromptKV
    flops: FlopCount
    rows: Tensor
    layers: range
    weights: Callable[[int], RowWeights]
    sight: Sight
    place: Callable[[int], Steps[None]]

    def run(self) -> Steps[Tensor]:
        """Runs the pass.

        Returns:
            Scores `[layers that count, n]` fp32; zero for tokens that are not cached or not scored.
        """
        decoder, layout, rows = self.decoder, self.layout, self.rows
        n, cached = layout.tokens, layout.cached_rows
        scores = torch.zeros(len(self.layers), n, dtype=torch.float32, device=layout.ids.device)
        x = decoder.embed(layout.ids[rows])
        last_layer = self.layers.stop - 1
        for layer in range(self.layers.stop):
            yield from self.place(layer)
            rule = decoder.rules[layer]
            k_all, v_all = self.kv.prompt_layer(layer, n)
            q, k, v = decoder.qkv(layer, x)
            q = decoder.ropes[layer].rotate(q, rows)
            write_rows(decoder.ropes[layer], k_all, v_all, k, v, rows)
            self.flops.project(len(rows))
            seen = cached if self.sight.seen is None else self.sight.seen(layer)
            attended = None
            if layer in self.layers:
                scored = cached if self.sight.scored is None else self.sight.scored(layer)
                keys = _Keys(k_all, v_all, scored)
                attended, layer_scores = attend_with_scores(
                    q, keys.k, keys.v, rows, self.weights(layer), decoder.scale,
                    key_rows=keys.rows, rule=rule,
                )  # fmt: skip
                if decoder.ranks is not None:
                    layer_scores = decoder.ranks.sum(layer_scores)
                scores[layer - self.layers.start].index_add_(0, scored, layer_scores)
                self.flops.score(float(len(rows)) * len(scored))
                if self.sight.seen is not None or self.sight.scored is not None:
                    attended = None  # these keys are not those that the rows see
            if layer < last_layer:  # nothing reads the output of the last layer
                if attended is None:
                    keys = _Keys(k_all, v_all, seen)
                    attended = attend_rows(
                        q, keys.k, keys.v, rows, decoder.scale, key_rows=keys.rows, rule=rule
                    )
                    self.flops.score(float(len(rows)) * len(seen))
                x = decoder.finish(layer, x, attended)
                self.flops.score(float(len(rows)) * len(seen))  # the values cost as much as scoring
                self.flops.finish(len(rows))
            yield None
        return scores


class _Keys:
    """Some keys and values of a layer, without a copy if they are all of them.

    Args:
        k: keys of the whole prompt after RoPE `[kv_heads, n, head_dim]`.
        v: its values, likewise.
        chosen: prompt rows, ascending `[m]`.

    Attributes:
        rows: the chosen rows; None if they are all of the prompt's.
    """

    def __init__(self, k: Tensor, v: Tensor, chosen: Tensor) -> None:
        whole = len(chosen) == k.shape[1]
        self.rows = None if whole else chosen
        self.k = k if whole else k[:, chosen]
        self.v = v if whole else v[:, chosen]
