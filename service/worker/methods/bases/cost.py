"""What a fusion method will compute of a prompt, told before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.worker.core.flops import FlopCount


@dataclass(frozen=True)
class PromptShape:
    """The sizes of a prompt that decide its cost.

    Attributes:
        tokens: of the whole prompt.
        question: tokens of the question.
        layers: of the model.
        uncached: tokens of segments that must be computed, because nothing is stored of them.
        documents: tokens of each document whose stored KV is used.
    """

    tokens: int
    question: int
    layers: int
    uncached: int = 0
    documents: Sequence[int] = ()


@dataclass(frozen=True)
class Phase:
    """Neighbouring layers of one pass that cost alike.

    Attributes:
        layers: which layers, in ascending order.
        computed: rows whose queries, keys and values are computed.
        attending: rows that go on from there, through attention and MLP.
        question: of the attending rows, those of the question: they see every key, other rows see
            half of the keys on average.
        keys: keys that a row of the question sees.
        cache_from: from this layer on a layer needs its stored KV before it can run.
        exact: every row of the prompt is computed, so nothing of it is lost if a segment that was
            counted on turns out not to be stored.
    """

    layers: range
    computed: int
    attending: int
    question: int
    keys: int
    cache_from: int = 0
    exact: bool = False

    def add_layer(self, count: FlopCount) -> None:
        """Count the operations of one of the layers."""
        question = min(self.question, self.attending)
        count.project(self.computed)
        count.attend(question * self.keys + (self.attending - question) * self.keys / 2)
        count.finish(self.attending)


def total_flops(phases: Sequence[Phase], count: FlopCount) -> float:
    """Operations of all phases and of the first token's logits."""
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
    without_question: int = 0,
) -> Iterator[Phase]:
    """The phases of the layer loop over a prompt whose every token is held.

    Args:
        rows: rows computed at the layers after the full ones, question included.
        full_layers: first layers that compute every row; the next one still projects every row.
        cache_from: first layer that needs stored KV.
        without_question: first layers in which the question's rows are taken from an earlier pass.
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
    reused = min(without_question, last)
    start = full + selecting
    if reused > start:
        others = rows - question
        yield Phase(range(start, reused), others, others, 0, n, cache_from)
        start = reused
    if start < last:
        yield phase(range(start, last), rows, rows)
    # Only the last row goes on from the last layer: nothing reads what the others would give.
    yield phase(range(last, shape.layers), rows, 1)
