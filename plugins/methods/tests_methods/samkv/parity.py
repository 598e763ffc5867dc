"""Runs one SamKV prompt by the service and by the reference, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvstitch.service.worker.forward.decode import decode_step
from kvstitch_methods.samkv.selection import recomputed_ends
from kvstitch_methods.samkv.sketch import BlockGrid, Sketch
from kvstitch_methods.samkv.sparse_method import SamKV
from tests.service.worker.tiny import Q, S, Tiny, assert_close
from tests_methods.samkv import reference as reference_samkv
from tests_methods.samkv.reference_pass import padding_sets
from tests_methods.samkv.toys import (
    LONG,
    PAPER,
    SparseRun,
    of_reference,
    sparse_run,
)

ANSWER = [30, 60, 90, 12]
Documents = Sequence[Sequence[int]]


def expected(
    model: Tiny, documents: Documents, method: SamKV, block: int = 4, **options: Any
) -> reference_samkv.SamKV:
    grids = [BlockGrid(len(ids), block) for ids in documents if ids]
    return reference_samkv.samkv(
        model.reference,
        S,
        documents,
        Q,
        block=block,
        update=method.update,
        selection=method.selection,
        bias=method.personalised_bias,
        recompute=method.recompute,
        normalise=method.normalise,
        pauta_pool=method.outliers_of,
        limit=method.block_limit(grids),
        ends=[recomputed_ends(grid, method.max_recomputed) for grid in grids],
        **options,
    )


def assert_same(
    claim: str,
    ours: SparseRun,
    theirs: reference_samkv.SamKV,
    documents: Documents,
    block: int = 4,
) -> None:
    """Sets, reads, cache and logits."""
    numbers = [i for i, ids in enumerate(documents) if ids]
    assert ours.selection.need == pytest.approx([theirs.proportions[i] for i in numbers], abs=1e-4)
    if any(ours.selection.blocks):
        named = [[(numbers[i], j) for i, j in blocks] for blocks in ours.selection.blocks]
        assert named == theirs.blocks
    assert ours.plan.kept == theirs.kept
    assert ours.plan.fresh == theirs.recomputed
    assert ours.plan.rows == theirs.hidden
    padding = padding_sets(theirs.kept, theirs.hidden)
    assert ours.plan.padding == padding
    assert_reads(ours, theirs, padding, numbers, block)
    assert ours.result.entries_per_head == len(theirs.kept[0]) + len(Q)
    assert_close(f"{claim}: logits", ours.result.logits, theirs.logits)
    for layer, (k, v) in enumerate(zip(theirs.trace.k, theirs.trace.v, strict=True)):
        assert_close(f"{claim}: K", ours.k[layer], k)
        assert_close(f"{claim}: V", ours.v[layer], v)


def assert_reads(
    ours: SparseRun,
    theirs: reference_samkv.SamKV,
    padding: list[list[int]],
    numbers: list[int],
    block: int,
) -> None:
    """Of every layer the kept middle blocks and those that hold padding, nothing else."""
    for read, number in zip(ours.read, numbers, strict=True):
        segment = ours.layout.documents[number]
        for layer, blocks in read.items():
            kept = {j for i, j in theirs.blocks[layer] if i == number}
            passing = {
                (t - segment.start) // block
                for t in padding[layer]
                if segment.start <= t < segment.end
            }
            assert blocks == sorted(kept | passing)


def check(
    claim: str,
    model: Tiny,
    documents: Documents = LONG,
    method: SamKV = PAPER,
    *,
    prefix: Sequence[int] = (),
    block: int = 4,
    stable_layers: tuple[int, ...] = (),
    sketches: reference_samkv.Sketches | None = None,
    room: int = 0,
) -> tuple[SparseRun, reference_samkv.SamKV]:
    """One prompt by both."""
    given: list[Sketch] | None = None
    if sketches is not None:
        given = [of_reference(layers) for layers in sketches]
    ours = sparse_run(
        model,
        documents,
        method,
        prefix=prefix,
        block=block,
        sketches=given,
        stable_layers=stable_layers,
        room=room,
    )
    theirs = expected(
        model,
        documents,
        method,
        block,
        prefix=prefix,
        stable_layers=stable_layers or None,
        sketches=sketches,
    )
    assert_same(claim, ours, theirs, documents, block)
    return ours, theirs


@dataclass
class Answering:
    """The least a decode step needs of a sequence."""

    kv: Any
    prompt: int
    tokens: list[int]
    lora: str = ""

    @property
    def position(self) -> int:
        return self.prompt + len(self.tokens) - 1


def assert_same_decode(model: Tiny, ours: SparseRun, theirs: reference_samkv.SamKV) -> None:
    """Positions go on from the prompt's length, not from what is held."""
    sequence = Answering(ours.sequence, ours.layout.tokens, [])
    for layer, rows in ours.result.held.items():  # as the engine does
        ours.sequence.remember(layer, [rows] * model.decoder.kv_heads, ours.layout.tokens)
    steps = []
    for token in ANSWER:
        sequence.tokens.append(token)
        steps.append(decode_step(model.decoder, [sequence])[0])
    question = range(ours.layout.question_start, ours.layout.tokens)
    held = [[*kept, *question] for kept in theirs.kept]
    decoded = model.reference.decode(theirs.trace, ANSWER, held=held)
    assert_close("samkv, then decode", torch.stack(steps), torch.stack(decoded))
