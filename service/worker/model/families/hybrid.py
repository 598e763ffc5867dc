"""Hybrids: families most of whose layers are mixers that keep a state instead of a key and value
per token.

What the rest of the worker calls layers are the attention layers of such a model. Mixers stand
before them, and behind the last:

    layers of the model     M M M A   M M M A   …   M
    here                    mixers[0], layer 0, mixers[1], layer 1, … mixers[layers]

So KV is stored, loaded and placed for attention layers alone, and each brings what its mixers
need: of a document their `StoredState`s, of a sequence their `State`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.mixer_state import (
    FIRST_ROWS,
    FirstRows,
    MixerShape,
    State,
    StoredState,
)
from kvstitch.service.worker.model.projection import (
    DenseProjection,
    LayerProjections,
    Projection,
    fuse,
)
from kvstitch.service.worker.steps import Steps, run

MIXER_ROWS = 512
"""Rows that a mixer computes at once; then other work may run."""


@dataclass(frozen=True)
class MixerRows:
    """What a mixer projects some rows to: inputs of its convolution, and what it reads beside."""

    mixed: Tensor  # `[m, channels]`
    beside: Sequence[Tensor]  # each `[m, …]`

    def part(self, rows: slice) -> MixerRows:
        return MixerRows(self.mixed[rows], [x[rows] for x in self.beside])


class Hybrid(DecoderModel):
    """What hybrids share: a mixer projects rows, runs them through a short convolution and then,
    if it has heads, through a rule that moves its state, and adds its output as attention does."""

    has_plain_layers = False
    measured = False
    takes_adapters = False
    mixer: MixerShape

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.mixer = self.mixer_shape(model.config)

    # -- hooks of families ------------------------------------------------------------------------

    def mixer_shape(self, config: Any) -> MixerShape:
        """Return the sizes of the model's mixers."""
        raise NotImplementedError

    def mixer_of(self, block: Any) -> Any:
        """Return the mixer of a block; None if it attends."""
        raise NotImplementedError

    def mixer_input(self, net: Any) -> Projection:
        """Return the projection to what `mixer_rows` splits."""
        return fuse(net.in_proj)

    def mixer_rows(self, net: Any, projected: Tensor) -> MixerRows:
        """Split what `mixer_input` returns."""
        raise NotImplementedError

    def convolution(self, net: Any) -> tuple[Tensor, Tensor | None, bool]:
        """Return weights `[channels, 1, rows + 1]` and bias, and whether SiLU follows."""
        return net.conv1d.weight, net.conv1d.bias, True

    def apply_rule(
        self, net: Any, own: MixerRows, mixed: Tensor, sums: Tensor, *, step: bool
    ) -> tuple[Tensor, Tensor]:
        """Return what convolved rows read, fp32, and the state behind them (`gated_delta.run`)."""
        # With `step` the rows belong to different sequences, whose states change in place.
        raise NotImplementedError

    def first_rows(self, net: Any, own: MixerRows, mixed: Tensor) -> FirstRows:
        """Return what `apply_rule` makes of a state by each of these rows."""
        raise NotImplementedError

    def mixer_output(self, net: Any, own: MixerRows, read: Tensor) -> Tensor:
        """Return what `out_proj` reads, `[m, width]`, in any dtype."""
        raise NotImplementedError

    # -- layers -----------------------------------------------------------------------------------

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Return attention layers, `layers` of them, and then the mixers."""
        ordered = [block for block in blocks if self.mixer_of(block) is None]
        if not ordered:
            raise ModelRefused(
                f"this {self.family} has no attention layer, and states alone are not stitched: "
                "give a model that has some",
                field="model",
            )
        self.layers, found = len(ordered), list[list[int]]([[]])
        for block in blocks:
            if self.mixer_of(block) is None:
                found.append([])
            else:
                found[-1].append(len(ordered))
                ordered.append(block)
        self.mixers = found
        return ordered

    def layer_projections(self, block: Any) -> LayerProjections:
        net = self.mixer_of(block)
        if net is None:
            return super().layer_projections(block)
        qkv, output = self.mixer_input(net), fuse(net.out_proj)
        return LayerProjections(qkv, output, *self.mlp_projections(block.mlp))

    @cached_property
    def layer_weights(self) -> list[tuple[int, int]]:
        shape = self.mixer
        # The rule reads a state and adds to it, and looks up what it knows unless A is a number.
        rule = (2 if shape.scalar else 3) * shape.heads * shape.key * shape.value
        rule += (shape.rows + 1) * shape.channels
        both = zip(self.blocks, self.projections, strict=True)
        parts = [(numbers(p.qkv), numbers(p.output) + self.feed_weights(b)) for b, p in both]
        mixed = [sum(sum(parts[i]) + rule for i in indices) for indices in self.mixers]
        made = [(mixed[i] + parts[i][0], parts[i][1]) for i in range(self.layers)]
        made[-1] = (made[-1][0], made[-1][1] + mixed[-1])
        return made

    # -- mixers -----------------------------------------------------------------------------------

    def mix(
        self,
        index: int,
        x: Tensor,
        state: State | None,
        pieces: Sequence[int | StoredState] = (),
        *,
        stored: list[StoredState] | None = None,
    ) -> Steps[tuple[Tensor, State, State | None]]:
        """Run rows x `[m, hidden]` through a block of `mixers` behind a state, None for the first;
        return both after them, and the state before the last piece. `pieces` are numbers of rows,
        and what is stored of others that stand between. What rows of a document make of any state
        is added to `stored`."""
        shape, net, out = self.mixer, self.mixer_of(self.blocks[index]), torch.empty_like(x)
        if stored is not None:
            pieces = (min(FIRST_ROWS, len(x)), max(0, len(x) - FIRST_ROWS))
        before = state
        at, cut, own, read = 0, slice(0, 0), MixerRows(x[:0], ()), list[Tensor]()
        begun: FirstRows | None = None
        given: Tensor | None = None  # the state that rows are shown apart from theirs
        for piece in pieces or [len(x)]:
            before = state
            if isinstance(piece, StoredState):
                state = piece.behind(state)
                continue
            state = shape.first(x) if state is None else state
            if begun is not None:
                given, state = state.sums, State(state.rows, shape.apart(state.sums))
            end = at + piece
            while at < end:
                if at == cut.stop:
                    if at:
                        out[cut] = yield from self._finish_mixer(index, x[cut], own, read)
                        yield None
                    cut, read = slice(at, min(at + MIXER_ROWS, len(x))), []
                    own = self._project(index, x[cut], batch=False)
                part = own.part(slice(at - cut.start, end - cut.start))
                at += len(part.mixed)
                seen = torch.cat([state.rows, part.mixed])
                mixed = self._convolved(
                    net, [seen[j:][: len(part.mixed)] for j in range(shape.rows + 1)]
                )
                rows, sums = self.apply_rule(net, part, mixed, state.sums, step=False)
                # A copy, so that not all that the convolution sees is held.
                state = State(seen[len(seen) - shape.rows :].clone(), sums)
                if stored is not None and begun is None:
                    begun = self.first_rows(net, part, mixed)
                read.append(rows if given is None else shape.joined(rows, given))
        out[cut] = yield from self._finish_mixer(index, x[cut], own, read)
        assert state is not None, "there are rows"
        if stored is not None and begun is not None:
            stored.append(StoredState(state.rows, begun, shape.mapped(state.sums), len(x)))
        return out, state, before

    def mix_step(
        self, index: int, x: Tensor, states: Sequence[State]
    ) -> tuple[Tensor, list[State]]:
        net = self.mixer_of(self.blocks[index])
        own = self._project(index, x, batch=True)
        seen = torch.cat([torch.stack([s.rows for s in states]), own.mixed[:, None]], 1)
        mixed = self._convolved(net, seen.unbind(1))
        sums = torch.stack([s.sums for s in states])
        read, sums = self.apply_rule(net, own, mixed, sums, step=True)
        out = run(self._finish_mixer(index, x, own, [read], batch=True))
        return out, [State(r, s) for r, s in zip(seen[:, 1:], sums, strict=True)]

    def _project(self, index: int, x: Tensor, *, batch: bool) -> MixerRows:
        block = self.blocks[index]
        projected = self.projections[index].qkv(self.attention_input(block, x), batch=batch)
        return self.mixer_rows(self.mixer_of(block), projected)

    def _convolved(self, net: Any, seen: Sequence[Tensor]) -> Tensor:
        """Return rows `[m, channels]` fp32 behind the convolution, from what stood before each,
        the nearest last, and their own."""
        weight, bias, silu = self.convolution(net)
        weight = weight[:, 0].float()
        out = seen[0].float() * weight[:, 0]
        for place, rows in enumerate(seen[1:], start=1):
            out.addcmul_(rows.float(), weight[:, place])
        if bias is not None:
            out += bias.float()
        if silu:
            out = torch.nn.functional.silu(out)
        return out.to(seen[0].dtype).float()

    def _finish_mixer(
        self, index: int, x: Tensor, own: MixerRows, read: Sequence[Tensor], *, batch: bool = False
    ) -> Steps[Tensor]:
        net = self.mixer_of(self.blocks[index])
        # Behind its own output a mixer goes on as every layer does.
        inner = self.mixer_output(net, own, torch.cat([*read])).to(x.dtype)
        return (yield from self.finish_steps(index, x, inner, batch=batch))


def numbers(projection: Projection | None) -> int:
    """Return how many weights a projection has; 0 for None."""
    return projection.weight.numel() if isinstance(projection, DenseProjection) else 0


def by_head(x: Tensor, heads: int) -> Tensor:
    """Return rows `[m, heads * width]` as `[m, heads, width]`."""
    return x.reshape(len(x), heads, -1)
