"""Which blocks a question needs (specification.md §1.7, Q2–Q5, P6) against the reference, on
made-up sketches: many more cases than a model gives."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch_methods.samkv.selection import (
    Selection,
    SketchedDocument,
    outliers,
    personalised,
    select,
)
from kvstitch_methods.samkv.sketch import BlockGrid
from tests.service.worker.tiny import assert_close
from tests_methods.samkv import reference as reference_samkv
from tests_methods.samkv import reference_selection as reference_samkv_selection
from tests_methods.samkv.reference_sketch import Sketch, block_ranges, outlier_blocks
from tests_methods.samkv.toys import of_reference

LAYERS, HEADS, KV_HEADS, D = 3, 6, 2, 8

Layers = list[Sketch]


def noise(source: random.Random, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(source.randrange(1 << 30)))


def made_up(source: random.Random, blocks: int, unscored: float = 0.2) -> Layers:
    """One document's sketch per layer; this share of its blocks has no scored token."""
    ranges = block_ranges(4 * blocks - source.randrange(4), 4)
    out = []
    for _ in range(LAYERS):
        known = [source.random() >= unscored for _ in ranges]
        out.append(
            Sketch(
                ranges,
                noise(source, blocks, KV_HEADS, D),
                0.5 * noise(source, KV_HEADS, D),
                noise(source, HEADS, D),
                [r[0] if is_known else None for r, is_known in zip(ranges, known, strict=True)],
                [source.random() if is_known else None for is_known in known],
                [source.gauss(0, 1) if is_known else None for is_known in known],
            )
        )
    return out


def ours(documents: Sequence[Layers]) -> list[SketchedDocument]:
    out, start = [], 7
    for layers in documents:
        grid = BlockGrid(layers[0].ranges[-1][-1] + 1, 4)
        out.append(SketchedDocument(start, grid, of_reference(layers)))
        start += grid.tokens
    return out


def both(
    documents: Sequence[Layers], question: Tensor, *, bias: bool = True, **options: Any
) -> tuple[Selection, reference_samkv.Selection]:
    sketched = ours(documents)
    queries = personalised(question, [d.sketch.local_query for d in sketched], bias=bias)
    chosen = select(sketched, queries, **options)
    expected = reference_samkv.select(list(question), documents, bias=bias, **options)
    return chosen, expected


@pytest.mark.parametrize("normalise", ["norm", "minmax", "softmax"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_references_blocks(normalise: str, bias: bool) -> None:
    """P, and the blocks of every layer; documents of 1 to 16 blocks."""
    source = random.Random(8)
    seen = set()
    for _ in range(30):
        documents = [made_up(source, source.randint(1, 16)) for _ in range(source.randint(1, 5))]
        options: dict[str, Any] = {
            "stable_layers": source.choice([(2,), (0, 2), (0, 1, 2)]),
            "limit": source.choice([None, None, 0, 1, 2]),
            "normalise": normalise,
            "bias": bias,
        }
        chosen, expected = both(documents, noise(source, LAYERS, HEADS, D), **options)
        assert chosen.need == pytest.approx(expected.proportions, abs=1e-5)
        assert chosen.blocks == expected.blocks
        seen.add(expected.m)
    assert seen >= {0, 1, 2}


def test_documents_in_which_no_middle_block_is_scored() -> None:
    """They need nothing, whatever their means say."""
    source = random.Random(3)
    documents = [made_up(source, 9, unscored=1.0), made_up(source, 9)]
    chosen, expected = both(documents, noise(source, LAYERS, HEADS, D), stable_layers=(0, 1, 2))
    assert chosen.need[0] == 0
    assert chosen.need == pytest.approx(expected.proportions, abs=1e-5)
    assert chosen.blocks == expected.blocks
    assert all(number == 1 for blocks in chosen.blocks for number, _ in blocks)


@pytest.mark.parametrize("normalise", ["norm", "minmax", "softmax"])
def test_scores_far_apart(normalise: str) -> None:
    """Sums over many wide heads differ by hundreds, of which a softmax leaves zeros: the order
    must not become that of the documents."""
    source = random.Random(6)
    question = noise(source, LAYERS, HEADS, D)
    documents = [
        [
            with_need(ordered(replace(s, block_keys=60 * s.block_keys), q), 0.5)
            for s, q in zip(made_up(source, 14, unscored=0), question, strict=True)
        ]
        for _ in range(3)
    ]
    options: dict[str, Any] = {"stable_layers": (0, 1, 2), "normalise": normalise, "bias": False}
    chosen, expected = both(documents, question, **options)
    assert chosen.blocks == expected.blocks
    assert expected.m == 6
    assert any(number == 2 for number, _ in chosen.blocks[0])


def test_personalised_queries() -> None:
    source = random.Random(1)
    question = noise(source, LAYERS, HEADS, D)
    locals_ = [noise(source, LAYERS, HEADS, D) for _ in range(4)]
    found = personalised(question, locals_, bias=True)
    for i, query in enumerate(found):
        for layer in range(LAYERS):
            expected = reference_samkv_selection.personalised(
                question[layer], [local[layer] for local in locals_], i
            )
            assert_close("personalised query", query[layer], expected.float(), atol=1e-5)
    assert all(q.equal(question) for q in personalised(question, locals_, bias=False))
    assert all(q.equal(question) for q in personalised(question, locals_[:1], bias=True))


def test_kept_grows_with_what_is_needed() -> None:
    """T11: P moves with the anchor between the best block and the worst; M with P, and of one
    document the set only grows. The far end, where P is 0 again, is left out."""
    source = random.Random(2)
    question = noise(source, LAYERS, HEADS, D)
    documents = [
        [ordered(s, q) for s, q in zip(made_up(source, 12, unscored=0), question, strict=True)]
        for _ in range(3)
    ]
    for shown in (documents, documents[:1]):
        found = []
        for step in range(1, 8):
            moved = [[with_need(s, step / 8) for s in layers] for layers in shown]
            chosen, _ = both(moved, question, bias=False, stable_layers=(0, 1, 2))
            assert chosen.need == pytest.approx([step / 8] * len(shown), abs=1e-5)
            assert [len(b) for b in chosen.blocks] == [math.ceil(9 * step / 8)] * LAYERS
            found.append(chosen.blocks)
        if len(shown) == 1:
            for before, after in pairwise(found):
                assert all(set(a) < set(b) for a, b in zip(before, after, strict=True))


def ordered(s: Sketch, query: Tensor) -> Sketch:
    """Keys turned so that the best block scores above zero and the worst below."""
    keys = s.block_keys.clone()
    best, worst = s.most_important, s.least_important
    assert best is not None and worst is not None and best != worst
    keys[best] *= 1 if reference_samkv_selection.product(query, keys[best]) > 0 else -1
    keys[worst] *= -1 if reference_samkv_selection.product(query, keys[worst]) > 0 else 1
    return replace(s, block_keys=keys)


def with_need(s: Sketch, share: float) -> Sketch:
    """The anchor this far on the way from the best to the worst block."""
    best, worst = s.most_important, s.least_important
    assert best is not None and worst is not None
    return replace(s, anchor=(1 - share) * s.block_keys[best] + share * s.block_keys[worst])


@pytest.mark.parametrize("pool", ["document", "request"])
def test_outliers(pool: str) -> None:
    """Three deviations below the mean of the document's blocks or of all; blocks of any kind."""
    source = random.Random(9)
    fired = 0
    for _ in range(20):
        documents = [made_up(source, source.randint(1, 30)) for _ in range(source.randint(1, 4))]
        for layers in documents:
            for s in layers:
                known = [j for j, alpha in enumerate(s.alphas) if alpha is not None]
                for j in source.sample(known, min(len(known), source.randint(0, 2))):
                    s.alphas[j] = -20.0
        found = outliers(ours(documents), pooled=pool == "request")
        for layer in range(LAYERS):
            expected = outlier_blocks([layers[layer] for layers in documents], pool)
            marked = [mark[layer].nonzero().flatten().tolist() for mark in found]
            assert marked == expected
            fired += sum(map(len, expected))
    assert fired > 10


def test_ten_blocks_have_no_outlier() -> None:
    """METHODS: nine others cannot make one of ten lie three deviations away; ten others can."""
    source = random.Random(0)
    for blocks, expected in ((10, 0), (12, 1)):
        document = made_up(source, blocks, unscored=0)
        for s in document:
            s.alphas[:] = [1.0] * blocks
            s.alphas[4] = -50.0
        [found] = outliers(ours([document]), pooled=False)
        assert found.sum(1).tolist() == [expected] * LAYERS


def test_nothing_to_choose_from() -> None:
    assert outliers([], pooled=True) == outliers([], pooled=False) == []
    assert select([], [], stable_layers=(0,)) == Selection([], [])
