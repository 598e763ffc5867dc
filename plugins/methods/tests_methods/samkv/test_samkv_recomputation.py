"""Outlier tokens and cases ①–④ through the passes, against the reference and sets made by hand
(specification.md §1.7, P6, Q5–Q7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.model.attention import ROW_TILE
from kvstitch_methods.samkv.sparse_method import SamKV
from tests.service.worker.tiny import Tiny, random_model, tiny_config, tiny_of
from tests_methods.samkv import reference as reference_samkv
from tests_methods.samkv import reference_sketch as expected_sketch
from tests_methods.samkv.parity import (
    ANSWER,
    Documents,
    assert_same_decode,
    check,
    expected,
)
from tests_methods.samkv.reference_pass import figure_5_cases
from tests_methods.samkv.toys import LONG, PAPER, sparse_run, tokens


def seeded(family: str, seed: int, **changes: Any) -> Tiny:
    return tiny_of(random_model(tiny_config(family, "llama3", **changes), seed))


def crafted(
    model: Tiny,
    layers: Sequence[int],
    documents: Documents = LONG,
    *,
    pool: str = "document",
    update: str = "overwrite",
) -> tuple[SamKV, reference_samkv.Sketches, reference_samkv.SamKV]:
    """Own sketches, but at these layers the first kept middle block of every document stays
    important as no other does. Layer 0, which alone says how much is needed, stays as it is."""
    method = replace(PAPER, outliers_of=pool, update=update)
    plain = expected(model, documents, method, stable_layers=(0,))
    sketches = [expected_sketch.document_sketches(model.reference, ids, (), 4) for ids in documents]
    for layer in layers:
        for number, own in enumerate(sketches):
            kept = [j for i, j in plain.blocks[layer] if i == number]
            scored = [j for j in kept if own[layer].representatives[j] is not None]
            alphas: list[float | None] = [None if a is None else 1.0 for a in own[layer].alphas]
            for j in scored[:1]:
                alphas[j] = -40.0
            own[layer] = replace(own[layer], alphas=alphas)
    return method, sketches, plain


@pytest.mark.parametrize("update", ["overwrite", "fusion"])
@pytest.mark.parametrize("pool", ["document", "request"])
def test_outliers_are_computed_and_pass_through_layers_below(pool: str, update: str) -> None:
    """Tokens of middle blocks kept at layers 2 and 4 only are rows of every layer below them, with
    stored KV, read for the purpose where their block is not kept."""
    outlying = padded = 0
    for seed, family in enumerate(("llama", "mistral", "qwen2", "qwen3")):
        model = seeded(family, seed)
        method, sketches, plain = crafted(model, (2, 4), pool=pool, update=update)
        ours, theirs = check(
            f"samkv outliers {update}",
            model,
            method=method,
            stable_layers=(0,),
            sketches=sketches,
            room=len(ANSWER),
        )
        assert theirs.blocks == plain.blocks
        assert_same_decode(model, ours, theirs)
        outlying += len(ours.plan.recomputed) - len(theirs.recomputed[0])
        padded += sum(map(len, ours.plan.padding))
    assert outlying
    assert padded


def test_padding_among_many_rows() -> None:
    """More rows than attention takes at once: each tile must see the padding before it."""
    model = seeded("qwen3", 1, max_position_embeddings=512)
    documents = [*LONG, *(tokens(n) for n in (56, 48, 52))]
    method, sketches, _ = crafted(model, (2, 4), documents)
    ours, _ = check(
        "samkv many rows", model, documents, method, stable_layers=(0,), sketches=sketches
    )
    assert len(ours.plan.rows[1]) > ROW_TILE
    assert ours.plan.padding[1]
    assert min(ours.plan.padding[1]) < ours.plan.rows[1][ROW_TILE - 1]


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("update", ["overwrite", "fusion"])
def test_the_four_cases_on_two_layers(share: float, update: str) -> None:
    """Figure 5, computed: one document of 26 blocks of 4 at 7–110, whose sketch makes the question
    want blocks 1, 2, 3 at layer 0 and 2, 3, 4 at layer 1. Outliers: the second tokens of 1 and 3 at
    layer 0, of 3 and 4 at layer 1."""
    model = seeded("llama", 1, num_hidden_layers=2)
    ids = tokens(104)
    queries = sparse_run(model, [ids]).queries
    own = [
        asked_for(model.reference.kv_heads, queries[0], 26, wanted=[1, 2, 3], outlying=[1, 3]),
        asked_for(model.reference.kv_heads, queries[1], 26, wanted=[2, 3, 4], outlying=[3, 4]),
    ]
    method = replace(PAPER, update=update, max_recomputed=share)
    ours, _ = check("samkv two layers", model, [ids], method, sketches=[own], stable_layers=(0, 1))
    ends = [*range(7, 11), *range(103, 111)]
    anew = ends if share == 1 else [*range(7, 11), *range(105, 111)]  # 10 of 104
    assert ours.plan.kept == [
        sorted([*range(7), *ends, *range(11, 23)]),
        sorted([*range(7), *ends, *range(15, 27)]),
    ]
    assert ours.plan.padding == [[24], []]
    assert ours.read == [{0: [1, 2, 3, 4], 1: [2, 3, 4]}]
    assert ours.plan.fresh == [sorted([*anew, 12, 20]), sorted([*anew, 20, 24])]
    one, two, three, four = figure_5_cases(ours.plan.kept, ours.plan.fresh, 0)
    assert one == {12}
    assert two >= {*range(7), *range(15, 19)}
    assert three == {24}
    assert four == {*anew, 20}


def asked_for(
    kv_heads: int, query: Tensor, blocks: int, *, wanted: list[int], outlying: list[int]
) -> expected_sketch.Sketch:
    """One layer's sketch: the question scores these blocks alike and above all others, and needs
    as many; of all blocks, whose second token represents them, `outlying` stay important."""
    toward = query.unflatten(0, (kv_heads, -1)).sum(1)
    weight = torch.full((blocks,), -1.0)
    weight[wanted] = torch.tensor([2.0 - 0.01 * j for j in wanted])
    best = weight[outlying[0]]
    # P = (best - anchor) / (best - worst), halfway between the two counts it must lie between.
    share = (len(wanted) - 0.5) / (blocks - 3)
    return expected_sketch.Sketch(
        ranges=expected_sketch.block_ranges(4 * blocks, 4),
        block_keys=weight[:, None, None] * toward,
        anchor=(best - share * (best + 1)) * toward,
        local_query=query,
        representatives=[4 * j + 1 for j in range(blocks)],
        masses=[0.1 if j in wanted else 0.05 for j in range(blocks)],
        alphas=[-1.0 if j in outlying else 1.0 for j in range(blocks)],
    )
