"""A pass of a few rows over the stitched cache, to measure which tokens they attend to; what it
and other passes ask where a device replays layers that were recorded before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import KVPlacer, PromptKV, write_and_rotate
from kvstitch.service.worker.kernels.cpu import prefill_attention
from kvstitch.service.worker.kernels.cpu.linear_many_rows_bf16 import PAUSE
from kvstitch.service.worker.kernels.cpu.prefill_attention import PassLayer
from kvstitch.service.worker.kernels.cpu.rotation import StoredSegment
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import (
    EVERYTHING_CACHED,
    DenseMethod,
    Probes,
    RowWeights,
    Sight,
)
from kvstitch.service.worker.model.attention import attend_rows, attend_with_scores
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import PLAIN, FlopCount
from kvstitch.service.worker.steps import Steps


class Replayed(NamedTuple):
    """What a run of layers has left."""

    stop: int  # the first layer that was not computed
    x: Tensor | None  # hidden states before that layer; None behind the last layer
    logits: Tensor | None  # of the last row, behind the last layer
    rows_per_layer: Sequence[int]


class RecordedRuns(Protocol):
    """Computes layers of one prompt at which a method has nothing to do."""

    def may_follow(self, layer: int) -> bool:
        """Return whether a run may take over at the attention of a layer that was chosen at."""

    def run(
        self, first: int, rows: Tensor, *, x: Tensor | None = None, q: Tensor | None = None
    ) -> Steps[Replayed | None]:
        """Compute all quiet layers from `first` on, of rows with hidden states x, or with
        queries q if the layer is computed from its attention on; None: there is no recording."""


class Recordings(Protocol):
    """Recorded layers of a decoder; a `Job` that records in spare time what would be used."""

    @property
    def idle(self) -> bool: ...

    def advance(self) -> None: ...

    def fail_current(self, error: Exception) -> None: ...

    def of_prompt(
        self, loop: Any, method: DenseMethod, rows: Tensor, probes: Probes | None
    ) -> RecordedRuns:
        """Return what computes layers of a `PromptLoop` that begins with these rows."""

    def scores(self, attention_pass: Any) -> Steps[Tensor | None]:
        """`AttentionPass.run`; None if there is no recording for such a pass."""


@dataclass(frozen=True)
class AttentionPass:
    """A pass of a few rows over the stitched cache, to measure which tokens they attend to."""

    decoder: DecoderModel
    layout: PromptLayout
    kv: PromptKV
    flops: FlopCount
    rows: Tensor
    layers: range
    weights: Callable[[int], RowWeights]
    sight: Sight
    placer: KVPlacer
    arrived: Callable[[int], Steps[bool]]
    recordings: Recordings | None = None

    def run(self) -> Steps[Tensor]:
        """Return scores `[layers that count, n]` fp32; 0 for tokens not cached or not scored."""
        scores = None if self.recordings is None else (yield from self.recordings.scores(self))
        if scores is None:
            scores = yield from self._by_kernel()
        if scores is not None:
            return scores
        decoder, layout, rows, sight = self.decoder, self.layout, self.rows, self.sight
        n, cached, scale = layout.tokens, layout.cached_rows, self.decoder.scale
        by_layer: list[Tensor] = []
        x = decoder.embed(layout.ids[rows])
        last_layer = self.layers.stop - 1
        for layer in range(self.layers.stop):
            yield from self.place(layer)
            rule, rope = decoder.rules[layer], decoder.ropes[layer]
            kv = self.kv.prompt_layer(layer, n)
            q, k, v = decoder.qkv(layer, x)
            q = write_and_rotate(rope, kv, q, k, v, rows)
            self.flops.project(layer, len(rows))
            seen = cached if sight.seen is None else sight.seen(layer)
            attended = None
            if layer in self.layers:
                scored = cached if sight.scored is None else sight.scored(layer)
                keys, values, at = _chosen(*kv, scored)
                attended, layer_scores = attend_with_scores(
                    q, keys, values, rows, self.weights(layer), scale, key_rows=at, rule=rule
                )
                if len(scored) < n:
                    of_scored, layer_scores = layer_scores, torch.zeros(n, device=rows.device)
                    layer_scores.index_copy_(0, scored, of_scored)
                by_layer.append(layer_scores)
                self.flops.score(float(len(rows)) * len(scored))
                if sight.seen is not None or sight.scored is not None:
                    attended = None  # these keys are not those that the rows see
            if layer < last_layer:  # nothing reads the output of the last layer
                if attended is None:
                    keys, values, at = _chosen(*kv, seen)
                    attended = attend_rows(q, keys, values, rows, scale, key_rows=at, rule=rule)
                    self.flops.score(float(len(rows)) * len(seen))
                x = decoder.finish(layer, x, attended)
                self.flops.score(float(len(rows)) * len(seen))  # the values cost as much as scoring
                self.flops.finish(layer, len(rows))
            yield None
        return torch.stack(by_layer)

    def _by_kernel(self) -> Steps[Tensor | None]:
        """Return the scores by a kernel for several layers at once; None if none takes such a
        pass."""
        decoder, rows, n, stop = self.decoder, self.rows, self.layout.tokens, self.layers.stop
        parts = [each for each in decoder.parts[:stop] if each is not None]
        plain = len(parts) == stop and all(rule is PLAIN for rule in decoder.rules[:stop])
        weights = self.same_weights() if plain else None
        if weights is None or rows.device.type != "cpu":
            return None
        x = decoder.embed(self.layout.ids[rows])
        kv = [self.kv.prompt_layer(layer, n) for layer in range(stop)]
        if not prefill_attention.supports_pass(parts[0], x, rows, weights, kv[0]):
            return None
        by_layer: list[Tensor] = []
        together = max(1, PAUSE // prefill_attention.pass_cost(parts[0], len(rows), n))
        for first in range(0, stop, together):
            layers: list[PassLayer] = []
            for layer in range(first, min(first + together, stop)):
                left: list[StoredSegment] = []
                if (yield from self.arrived(layer)):
                    left = self.placer.left_to_kernel(layer)
                rope, counts = decoder.ropes[layer], layer in self.layers
                layers.append(PassLayer(parts[layer], *kv[layer], rope.cos, rope.sin, left, counts))
                self.count(layer)
            scores = prefill_attention.run_pass(
                layers, x, rows, row_weights=weights, positions=self.placer.positions,
                scale=decoder.scale, ends=first + together >= stop,
            )  # fmt: skip
            by_layer.append(scores)
            yield None
        return torch.cat(by_layer)

    def place(self, layer: int) -> Steps[None]:
        """Wait for stored KV of a layer, and put it in place."""
        if (yield from self.arrived(layer)):
            self.placer.place(layer)

    def same_weights(self) -> Tensor | None:
        """Return the rows' weights, if they are the same at all layers and all tokens are seen
        and scored."""
        layers = [self.weights(layer) for layer in self.layers]
        weights = layers[0] if all(each is layers[0] for each in layers) else None
        everything = len(self.layout.cached_rows) == self.layout.tokens
        sees_it = self.sight is EVERYTHING_CACHED and everything
        return weights if isinstance(weights, Tensor) and sees_it else None

    def count(self, layer: int) -> None:
        """Count the work of a layer that scores and sees everything, if it scores."""
        m, pairs = len(self.rows), float(len(self.rows)) * self.layout.tokens
        self.flops.project(layer, m)
        if layer in self.layers:
            self.flops.score(pairs)
        if layer + 1 < self.layers.stop:
            if layer not in self.layers:
                self.flops.score(pairs)
            self.flops.score(pairs)
            self.flops.finish(layer, m)


def _chosen(k: Tensor, v: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the keys and values of some rows, and the rows: None where they are all."""
    return (k, v, None) if len(rows) == k.shape[1] else (k[:, rows], v[:, rows], rows)
