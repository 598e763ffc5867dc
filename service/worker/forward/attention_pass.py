"""A pass of a few rows over the stitched cache: which of its tokens do they attend to?

Only these rows run (the question's are about one percent of a prefill), over cached keys at their
places in the prompt. Uncached segments, whose keys do not exist yet, are not seen. One softmax
serves both the rows' own attention and the scores. The pass pauses after every layer, so that it
can follow a cache that arrives layer by layer.
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
    """The question's rows in the first layers, as a pass left them.

    Attributes:
        layers: how many first layers.
        projected: what the projections gave in each of them.
        x: hidden rows as they come into the layer after; None until the pass got there.
    """

    layers: int
    projected: list[ProjectedRows] = field(default_factory=list)
    x: Tensor | None = None


@dataclass(frozen=True)
class AttentionPass:
    """One pass over one prompt.

    Attributes:
        rows: prompt rows that run, ascending `[m]`.
        layers: those whose attention counts; the pass ends behind the last of them.
        weights: how the attention of a layer becomes scores.
        place: called before a layer, puts the layer's cached KV in place.
        reused: remembers the first layers of the question's rows.
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
        """Scores `[n]` fp32, summed over the layers that count; zero at uncached tokens."""
        adapter, layout, rows, reused = self.adapter, self.layout, self.rows, self.reused
        n, seen = layout.tokens, layout.cached_rows
        everything = len(seen) == n
        scores = torch.zeros(n, dtype=torch.float32, device=layout.ids.device)
        x = adapter.embed(layout.ids[rows])
        pairs = float(len(rows)) * len(seen)
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
            keys, values = (k_all, v_all) if everything else (k_all[:, seen], v_all[:, seen])
            key_rows = None if everything else seen
            if layer in self.layers:
                attended, found = attend_with_scores(
                    q, keys, values, rows, self.weights(layer), adapter.scale, key_rows=key_rows
                )
                if everything:
                    scores += found
                else:
                    scores.index_add_(0, seen, found)
            else:
                attended = attend_rows(q, keys, values, rows, adapter.scale, key_rows=key_rows)
            self.flops.project(len(rows))
            self.flops.score(pairs)
            if layer < last_layer:  # nothing reads what the last layer would give
                x = adapter.finish(layer, x, attended)
                self.flops.score(pairs)  # weighting values costs what scoring does
                self.flops.finish(len(rows))
            yield None
        return scores
