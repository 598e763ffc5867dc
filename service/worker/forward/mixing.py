"""Mixers of a prompt: rows that are computed run through them, and what is stored of the others'
documents is composed in between.

    S stored │ D_1 stored │ D_2 computed │ Q computed
    ─ A·S+B ─┼── A·S+B ───┼─── rows ─────┼── rows ──▶ the state that decoding begins with
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvstitch.service.worker.kv.pool import SequenceStates
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import CachedSegment
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.mixer_state import State, States, StoredState
from kvstitch.service.worker.steps import Steps


def stored_states(
    decoder: DecoderModel, segment: CachedSegment, layer: int, tokens: int
) -> list[StoredState]:
    """Return what is stored of a segment of so many tokens for the mixers before a layer, in
    their order (`DecoderModel.mixers_per_layer`)."""
    shape, found = decoder.mixer, []
    assert shape is not None
    for index in decoder.mixers[layer]:
        stored_layer, place = divmod(index - decoder.layers, decoder.mixers_per_layer)
        raw, codec = segment.state(stored_layer)
        size = shape.nbytes(decoder.dtype, codec)
        own = raw[place * size :][:size].to(decoder.device)
        found.append(shape.unpacked(own, decoder.dtype, codec, tokens))
    return found


@dataclass
class PromptMixing:
    """The states of one prompt's mixers while it is prefilled with some rows computed: all of the
    segments that are not cached, and the question's."""

    decoder: DecoderModel
    layout: PromptLayout
    cached: Sequence[CachedSegment | None]
    rows: Tensor
    kept: SequenceStates
    """Has the states before the prompt's first computed row, if it continues another."""
    after: States
    """Behind the last row; `marks` has those before the question, too."""
    marks: dict[int, States]
    pieces: list[slice | tuple[CachedSegment, int]] = field(init=False)
    _marked: int = 0

    def __post_init__(self) -> None:
        """Cut the rows where a stored segment stands between them, and before the question."""
        layout, at = self.layout, 0
        everything = len(self.rows) == layout.tokens
        self.pieces = []
        for segment, stored in zip(layout.segments, self.cached, strict=True):
            if segment.tokens and not everything and not segment.computed:
                assert stored is not None, "a cached segment has stored KV"
                self.pieces.append((stored, segment.tokens))
            elif segment.tokens:
                self.pieces.append(slice(at, at + segment.tokens))
                at += segment.tokens
        self._marked = len(self.pieces)
        self.pieces.append(slice(at, len(self.rows)))
        asked = layout.tokens - layout.question_start
        assert len(self.rows) - at == asked, "methods for hybrids compute whole segments"

    @property
    def reads_stored(self) -> bool:
        return any(not isinstance(piece, slice) for piece in self.pieces)

    def advance(self, layer: int, x: Tensor) -> Steps[Tensor]:
        """Run what stands before a layer; x `[m, hidden]` are the rows' hidden states."""
        decoder = self.decoder
        stored = {
            place: stored_states(decoder, piece[0], layer, piece[1])
            for place, piece in enumerate(self.pieces)
            if not isinstance(piece, slice)
        }
        for number, index in enumerate(decoder.mixers[layer]):
            state: State | None = self.kept.live.get(index)
            out: list[Tensor] = []
            for place, piece in enumerate(self.pieces):
                if place == self._marked and state is not None:
                    self.marks.setdefault(self.layout.question_start, {})[index] = state
                if isinstance(piece, slice):
                    rows, state = yield from decoder.mix(index, x[piece], state)
                    out.append(rows)
                else:
                    state = stored[place][number].behind(state)
            x = torch.cat(out) if len(out) > 1 else out[0]
            assert state is not None, "the question has rows"
            self.after[index] = state
        return x

    def finish(self) -> None:
        """Leave the states for decoding, and for prompts that begin alike."""
        self.marks[self.layout.tokens] = dict(self.after)
        self.kept.live, self.kept.marks = dict(self.after), dict(self.marks)
