"""A pass of a few rows over the stitched cache, to measure which tokens they attend to.

Only these rows are computed (those of the question cost about one percent of a prefill), over
cached keys at their positions in the prompt. Uncached segments are not visible: their keys do not
exist yet. One softmax gives both the rows' attention and the scores. The pass pauses after every
layer, so it can run while the cache is still being loaded layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount
from service.worker.core.layer_view import ProjectedRows
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import PromptKV, write_rows
from service.worker.methods.bases.dense import RowWeights
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import attend_rows, attend_with_scores


@dataclass
class ReusedQuestionRows:
    """The question's rows in the first layers, computed by a pass, for reuse in the layer loop.

    Attributes:
        layers: number of first layers.
        projected: queries, keys and values of the rows at each of them.
        x: hidden states `[m, hidden]` after these layers; None until the pass got there.
    """

    layers: int
    projected: list[ProjectedRows] = field(default_factory=list)
    x: Tensor | None = None


@dataclass(frozen=True)
class AttentionPass:
    """One pass over one prompt.

    Attributes:
        kv: the prompt's KV cache.
        flops: the prompt's FLOP count, to which the pass adds its work.
        rows: prompt rows that are computed, ascending `[m]`.
        layers: layers whose attention counts; the pass ends after the last of them.
        weights: for a layer's number, how its attention becomes scores.
        place: called before each layer, to put its cached KV in place.
        reused: filled with the rows' results in the first layers.
    """

    adapter: DecoderAdapter
    layout: PromptLayout
    kv: PromptKV
    flops: FlopCount
    rows: Tensor
    layers: range
    weights: Callable[[int], RowWeights]
    place: Callable[[int], Steps[None]]
    reused: ReusedQuestionRows

    def run(self) -> Steps[Tensor]:
        """Runs the pass.

        Returns:
            Scores `[n]` fp32, summed over the layers that count; zero at uncached tokens.
        """
        adapter, layout, rows, reused = self.adapter, self.layout, self.rows, self.reused
        n, visible = layout.tokens, layout.cached_rows
        all_visible = len(visible) == n
        scores = torch.zeros(n, dtype=torch.float32, device=layout.ids.device)
        x = adapter.embed(layout.ids[rows])
        pairs = float(len(rows)) * len(visible)
        last_layer = self.layers.stop - 1
        for layer in range(self.layers.stop):
            if layer == reused.layers:
                reused.x = x
            yield from self.place(layer)
            k_all, v_all = self.kv.prompt_layer(layer, n)
            fresh_q, k, v = adapter.qkv(layer, x)
            q = adapter.rope.rotate(fresh_q, rows)
            if layer < reused.layers:
                reused.projected.append(ProjectedRows(q, fresh_q, k, v))
            write_rows(adapter.rope, k_all, v_all, k, v, rows)
            key_rows = None if all_visible else visible
            keys = k_all if key_rows is None else k_all[:, key_rows]
            values = v_all if key_rows is None else v_all[:, key_rows]
            if layer in self.layers:
                attended, layer_scores = attend_with_scores(
                    q, keys, values, rows, self.weights(layer), adapter.scale, key_rows=key_rows
                )
                if key_rows is None:
                    scores += layer_scores
                else:
                    scores.index_add_(0, key_rows, layer_scores)
            else:
                attended = attend_rows(q, keys, values, rows, adapter.scale, key_rows=key_rows)
            self.flops.project(len(rows))
            self.flops.score(pairs)
            if layer < last_layer:  # nothing reads the output of the last layer
                x = adapter.finish(layer, x, attended)
                self.flops.score(pairs)  # weighting the values costs as much as scoring
                self.flops.finish(len(rows))
            yield None
        return scores
