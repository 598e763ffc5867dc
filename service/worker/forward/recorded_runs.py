"""Runs of layers of one prompt that are computed by recordings, as the layer loop would do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from service.worker.forward.kv_placement import PromptKV
from service.worker.forward.prefill_graphs import PrefillGraphs
from service.worker.forward.recorded_tensors import Given
from service.worker.layout import PromptLayout
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.stored_kv import PlannedShift
from service.worker.model.model_facts import FlopCount
from service.worker.steps import Steps


@dataclass(frozen=True)
class Replayed:
    """What a run has left."""

    stop: int
    x: Tensor | None
    logits: Tensor | None
    rows_per_layer: list[int]


@dataclass(frozen=True, kw_only=True)
class RecordedRuns:
    """Computes layers at which a method has nothing to do (`DenseMethod.is_quiet`)."""

    graphs: PrefillGraphs
    layout: PromptLayout
    kv: PromptKV
    flops: FlopCount  # the prompt's FLOP count
    method: DenseMethod
    layers: int  # of the model
    shift: PlannedShift | None  # of rows that are not computed; None: they stay
    # waits for a layer's stored KV, and puts it in place if that is wanted
    ready: Callable[[int, bool], Steps[None]]

    def may_follow(self, layer: int) -> bool:
        """Return whether a run may take over at the attention of a layer that was chosen at."""
        quiet = self.method.is_quiet
        return layer + 1 < self.layers and not quiet(layer) and quiet(layer + 1)

    def run(
        self, first: int, rows: Tensor, *, x: Tensor | None = None, q: Tensor | None = None
    ) -> Steps[Replayed | None]:
        """Compute all quiet layers from `first` on, of rows with hidden states x, or with
        queries q if the layer is computed from its attention on; None if there are no recordings
        for them."""
        layout, m = self.layout, len(rows)
        begun = q is not None
        stop = first + begun
        while stop < self.layers and self.method.is_quiet(stop):
            stop += 1
        if stop == first:
            return None
        shape = self.graphs.shape(
            m, first, stop, tokens=layout.tokens, from_attention=begun, shift=self.shift,
            copied_from=self.method.layers_without_cache,
        )  # fmt: skip
        if shape is None:
            return None
        known = layout.on_host(rows)
        ids = layout.on_host(layout.ids)[known] if x is None else None
        given = Given(rows=known, tokens=layout.tokens, ids=ids, x=x, q=q, shift=self.shift)
        with self.graphs.replay(shape, self.kv, given) as replay:
            if replay is None:
                return None
            for group in shape.groups:
                for layer in group:
                    computed_before = begun and layer == first
                    if not computed_before:
                        yield from self.ready(layer, m < layout.tokens)
                    self._count(layer, known, projected=not computed_before)
                replay.play(group)
                yield None
            ends = stop == self.layers
            counts = [m] * (stop - first - ends) + [1] * ends
            return Replayed(
                stop, None if ends else replay.x, replay.logits if ends else None, counts
            )

    def _count(self, layer: int, rows: Tensor, *, projected: bool) -> None:
        """Count the work of a layer; of the last only the last row is finished."""
        if projected:
            self.flops.project(len(rows))
        finished = rows[-1:] if layer + 1 == self.layers else rows
        self.flops.finish(len(finished))
        self.flops.attend_causally(finished)
