"""Runs of layers of a prompt that are computed by recordings, as the layer loop would do it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.worker.forward.attention_pass import AttentionPass, Replayed
from kvstitch.service.worker.forward.prefill import PromptLoop
from kvstitch.service.worker.methods.bases.dense import DenseMethod, Probes
from kvstitch.service.worker.steps import Steps
from kvstitch_gpu.prefill_graphs import PrefillGraphs
from kvstitch_gpu.recorded_tensors import Given
from kvstitch_gpu.shift_gpu import KernelShift


class PrefillRecordings(PrefillGraphs):
    """Recordings with what passes over a prompt ask of them; implements `Recordings`."""

    def of_prompt(
        self, loop: PromptLoop, method: DenseMethod, rows: Tensor, probes: Probes | None
    ) -> LayerRuns:
        shift = None
        if probes is not None:
            shift = KernelShift.of(loop.layout, loop.cached, rows, *probes)
        return LayerRuns(self, loop, method, shift if shift and shift.documents else None)

    def scores(self, attention_pass: AttentionPass) -> Steps[Tensor | None]:
        layout, rows, n = attention_pass.layout, attention_pass.rows, attention_pass.layout.tokens
        weights = attention_pass.same_weights()
        if weights is None:
            return None
        layers, known = attention_pass.layers, layout.on_host(rows)
        shape = self.shape(len(rows), 0, layers.stop, tokens=n, scored=layers)
        ids = layout.on_host(layout.ids)[known]
        given = Given(rows=known, tokens=n, ids=ids, weights=weights)
        with self.replay(shape, attention_pass.kv, given) as replay:
            if replay is None:
                return None
            for group in replay.shape.groups:
                for layer in group:
                    yield from attention_pass.place(layer)
                    attention_pass.count(layer)
                replay.play(group)
                yield None
            return replay.scores(n)


@dataclass(frozen=True)
class LayerRuns:
    """Computes layers at which a method has nothing to do (`DenseMethod.is_quiet`); implements
    `RecordedRuns`."""

    graphs: PrefillGraphs
    loop: PromptLoop
    method: DenseMethod
    shift: KernelShift | None  # of rows that are not computed; None: they stay

    def may_follow(self, layer: int) -> bool:
        quiet = self.method.is_quiet
        return layer + 1 < self.loop.num_layers and not quiet(layer) and quiet(layer + 1)

    def run(
        self, first: int, rows: Tensor, *, x: Tensor | None = None, q: Tensor | None = None
    ) -> Steps[Replayed | None]:
        layout, layers, m = self.loop.layout, self.loop.num_layers, len(rows)
        begun = q is not None
        stop = first + begun
        while stop < layers and self.method.is_quiet(stop):
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
        with self.graphs.replay(shape, self.loop.kv, given) as replay:
            if replay is None:
                return None
            for group in shape.groups:
                for layer in group:
                    computed_before = begun and layer == first
                    if not computed_before:
                        yield from self.loop.make_ready(
                            self.method, layer, placed=m < layout.tokens
                        )
                    self._count(layer, known, projected=not computed_before)
                replay.play(group)
                yield None
            ends = stop == layers
            counts = [m] * (stop - first - ends) + [1] * ends
            return Replayed(
                stop, None if ends else replay.x, replay.logits if ends else None, counts
            )

    def _count(self, layer: int, rows: Tensor, *, projected: bool) -> None:
        """Count the work of a layer; of the last only the last row is finished."""
        flops = self.loop.flops
        if projected:
            flops.project(layer, len(rows))
        finished = rows[-1:] if layer + 1 == self.loop.num_layers else rows
        flops.finish(layer, len(finished))
        flops.attend_causally(finished)
