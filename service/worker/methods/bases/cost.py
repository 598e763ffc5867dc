"""How much a fusion method will compute for a prompt, known before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.worker.model.flops import FlopCount


@dataclass(frozen=True)
class PromptShape:
    """The sizes of a prompt that decide its cost.

    Attributes:
        tokens: tokens of the whole prompt.
        question: tokens of the question.
        layers: layers of the model.
        uncached: tokens of segments that must be computed, because they are not stored.
        documents: tokens of each document whose stored KV is used.
    """

    tokens: int
    question: int
    layers: int
    uncached: int = 0
    documents: Sequence[int] = ()


@dataclass(frozen=True)
class Phase:
    """Neighbouring layers of one pass that all cost the same.

    Attributes:
        layers: which layers, in ascending order.
        computed: rows whose queries, keys and values are computed.
        attending: rows that continue from there through attention and MLP.
        question: how many of the attending rows belong to the question: these see every key, the
            others see half of the keys on average.
        keys: number of keys that a row of the question sees.
        cache_from: first layer that cannot run before its stored KV has been loaded.
        exact: every row of the prompt is computed, so this work stays valid even if a segment turns
            out not to be stored.
    """

    layers: range
    computed: int
    attending: int
    question: int
    keys: int
    cache_from: int = 0
    exact: bool = False

    def add_layer(self, count: FlopCount) -> None:
        """Adds the operations of one of the layers to `count`."""
        question = min(self.question, self.attending)
        count.project(self.computed)
        count.attend(question * self.keys + (self.attending - question) * self.keys / 2)
        count.finish(self.attending)


def total_flops(phases: Sequence[Phase], count: FlopCount) -> float:
    """Operations of all phases and of the first token's logits, counted with `count`."""
    for phase in phases:
        for _ in phase.layers:
            phase.add_layer(count)
    count.unembed(1)
    return count.total


def dense_phases(
    shape: PromptShape,
    rows: int,
    *,
    full_layers: int = 0,
    cache_from: int = 0,
) -> Iterator[Phase]:
    """The phases of the layer loop over a prompt of which every token is held.

    Args:
        rows: rows computed at the layers after the full ones, question included.
        full_layers: number of first layers that compute every row; the layer after them still
            projects every row.
        cache_from: first layer that needs stored KV.
    """
    last, n = shape.layers - 1, shape.tokens
    question = shape.question

    def phase(layers: range, computed: int, attending: int, *, exact: bool = False) -> Phase:
        return Phase(layers, computed, attending, question, n, cache_from, exact)

    full = min(full_layers, last)
    if full:
        yield phase(range(full), n, n, exact=True)
    selecting = full_layers > 0 and full < last
    if selecting:
        yield phase(range(full, full + 1), n, rows)
    start = full + selecting
    if start < last:
        yield phase(range(start, last), rows, rows)
    # Only the last row finishes the last layer: nothing reads the outputs of the others.
    yield phase(range(last, shape.layers), rows, 1)
