"""Mixers of a prompt: rows that are computed run through them, and what is stored of the others'
documents is composed in between.

    S stored │ D_1 stored │ D_2 computed │ D_3, first rows computed │ Q computed
    ─ A·S+B ─┼── A·S+B ───┼─── rows ─────┼── rows ─── A·S+B ────────┼── rows ──▶ decoding
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvstitch.service.worker.kv.pool import SequenceStates
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import CachedSegment
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.mixer_state import FIRST_ROWS, States, StoredState
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
    segments that are not cached, the first ones of others, and the question's."""

    decoder: DecoderModel
    layout: PromptLayout
    cached: Sequence[CachedSegment | None]
    rows: Tensor
    kept: SequenceStates
    """Has the states before the prompt's first computed row, if it continues another."""
    after: States
    """Behind the last row; `marks` has those before the question, too."""
    marks: dict[int, States]
    # Before the question: so many rows that are computed, and segments of which the rows behind
    # so many first ones are stored.
    pieces: list[int | tuple[CachedSegment, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Cut the rows where a stored segment stands between them."""
        layout, self.pieces = self.layout, []
        counts = layout.count_rows(self.rows)
        for segment, stored, rows in zip(layout.segments, self.cached, counts, strict=True):
            if rows:
                self.pieces.append(rows)
            if rows < segment.tokens:
                assert stored is not None, "a cached segment has stored KV"
                assert rows <= FIRST_ROWS, "methods for hybrids compute first rows of segments"
                self.pieces.append((stored, segment.tokens, rows))

    @property
    def reads_stored(self) -> bool:
        return any(not isinstance(piece, int) for piece in self.pieces)

    def advance(self, layer: int, x: Tensor) -> Steps[Tensor]:
        """Run what stands before a layer; x `[m, hidden]` are the rows' hidden states."""
        decoder, asked = self.decoder, self.layout.question_start
        stored = [
            piece if isinstance(piece, int)
            else [s.after(piece[2]) for s in stored_states(decoder, piece[0], layer, piece[1])]
            for piece in self.pieces
        ]  # fmt: skip
        for number, index in enumerate(decoder.mixers[layer]):
            pieces = [each if isinstance(each, int) else each[number] for each in stored]
            pieces.append(self.layout.tokens - asked)
            x, after, before = yield from decoder.mix(index, x, self.kept.live.get(index), pieces)
            self.after[index] = after
            if before is not None:
                self.marks.setdefault(asked, {})[index] = before
        return x

    def finish(self) -> None:
        """Leave the states for decoding, and for prompts that begin alike."""
        self.marks[self.layout.tokens] = dict(self.after)
        self.kept.live, self.kept.marks = dict(self.after), dict(self.marks)
