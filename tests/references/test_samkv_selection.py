"""The reference of SamKV's choice of blocks, on made-up numbers (docs/specification.md §1.7 Q2–Q5;
§1.9 T11)."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch

from tests.references.samkv_selection import (
    block_scores,
    chosen_blocks,
    cosine,
    layer_proportion,
    normalised,
    personalised,
    pooled_blocks,
    product,
    proportion,
    wanted_blocks,
)
from tests.references.samkv_sketch import Sketch, sketch_of
from tests.references.samkv_toys import causal, noise
from tests.service.worker.tiny import assert_close


def toy(tokens: int, seed: int = 0, min_later: int = 3) -> Sketch:
    """A made-up layer: 2 KV heads, 4 query heads, d = 3, blocks of 4."""
    return sketch_of(
        noise(tokens, 2, 3, seed=seed),
        noise(tokens, 4, 3, seed=seed + 1),
        causal(tokens, seed),
        4,
        min_later,
    )


# -- Q2, Q3 ---------------------------------------------------------------------------------------


def test_personalised_queries() -> None:
    """Equation 1 by hand; one cosine over all heads; one document has the question's own."""
    question = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    opposite, other = -2 * question, torch.tensor([[0.0, 3.0], [0.0, 3.0]])
    assert cosine(question, opposite) == pytest.approx(-1)
    assert cosine(question, other) == pytest.approx(0.5)
    assert cosine(question, 0 * other) == 0
    hat = personalised(question, [question, opposite, other], 0)
    assert_close("equation 1", hat.float(), question + (opposite + 0.5 * other) / 2)
    hat = personalised(question, [question, opposite, other], 1)
    assert_close("equation 1", hat.float(), question + (question + 0.5 * other) / 2)
    assert personalised(question, [other], 0).float().equal(question)


def test_products_share_keys_in_groups() -> None:
    query = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 10.0]])
    assert product(query, key) == pytest.approx(1 + 3 + 60 + 80)


def test_proportion() -> None:
    """Equation 2: in [0, 1), 0 at both ends and outside."""
    assert proportion(3.0, 2.0, 1.0) == pytest.approx(0.5)
    assert proportion(3.0, 3.0, 1.0) == proportion(3.0, 1.0, 1.0) == 0
    assert proportion(3.0, 4.0, 1.0) == proportion(1.0, 2.0, 3.0) == proportion(2.0, 2.0, 2.0) == 0
    source = random.Random(1)
    values = [proportion(*(source.gauss(0, 1) for _ in range(3))) for _ in range(500)]
    assert min(values) == 0 and 0.8 < max(values) < 1
    higher = [proportion(m, 0.0, -1.0) for m in (0.0, 0.5, 1.0, 9.0)]
    assert higher == sorted(higher) and higher[0] == 0 and len(set(higher)) == 4


def test_proportion_of_a_document() -> None:
    """One middle block: K_max is K_min and P = 0; none: 0; otherwise by its three products."""
    query = noise(4, 3, seed=5)
    assert layer_proportion(query, toy(12)) == 0
    assert all(layer_proportion(query, toy(16, seed)) == 0 for seed in range(20))
    values = [layer_proportion(noise(4, 3, seed=s), toy(40, s)) for s in range(30)]
    assert 0 < max(values) < 1 and min(values) == 0
    sketch = toy(40)
    best, worst = sketch.most_important, sketch.least_important
    assert best is not None and worst is not None
    keys = (sketch.block_keys[best], sketch.anchor, sketch.block_keys[worst])
    assert layer_proportion(query, sketch) == proportion(*(product(query, key) for key in keys))


# -- Q4 -------------------------------------------------------------------------------------------


def test_normalisations() -> None:
    scores, query = {1: 2.0, 2: 6.0, 3: 4.0}, torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert normalised(scores, query) == {1: 0.4, 2: 1.2, 3: 0.8}
    assert normalised(scores, query, "minmax") == {1: 0.0, 2: 1.0, 3: 0.5}
    soft = normalised(scores, query, "softmax")
    assert sum(soft.values()) == pytest.approx(1) and soft[2] / soft[3] == pytest.approx(math.e**2)
    assert normalised({4: 1.0}, query, "minmax") == {4: 0.0}
    for how in ("norm", "minmax", "softmax"):
        assert normalised({}, query, how) == {}
    with pytest.raises(ValueError, match="other"):
        normalised(scores, query, "other")
    sketch = toy(40)
    assert list(block_scores(noise(4, 3), sketch)) == sketch.middle


def test_counts() -> None:
    """k_i rounds up, M too; D counts documents without middle blocks; the limit is on M."""
    assert wanted_blocks([0.0, 0.01, 0.5, 0.99], [9, 9, 9, 9]) == [0, 1, 5, 9]
    assert wanted_blocks([0.9], [0]) == [0]
    assert pooled_blocks([0, 1, 5]) == 2 and pooled_blocks([0, 0, 1]) == 1
    assert pooled_blocks([]) == pooled_blocks([0, 0]) == 0
    assert pooled_blocks([4, 6], 3) == 3 and pooled_blocks([4, 6], 9) == 5


def test_chosen_blocks() -> None:
    scores = [{1: 9.0, 2: 8.0, 3: 7.0}, {1: 1.0, 2: 7.5, 3: 2.0}]
    assert chosen_blocks(scores, [3, 3], 3) == [(0, 1), (0, 2), (1, 2)]
    assert chosen_blocks(scores, [1, 2], 2) == [(0, 1), (1, 2)]
    assert chosen_blocks(scores, [0, 3], 2) == [(1, 2), (1, 3)]
    assert chosen_blocks(scores, [3, 3], 0) == []
    ties = [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}]
    assert chosen_blocks(ties, [2, 2], 2) == [(0, 1), (0, 2)]
    assert chosen_blocks(ties, [1, 2], 2) == [(0, 1), (1, 1)]


def test_kept_is_monotone_in_p() -> None:
    """T11. A larger P keeps at least as many blocks; with one document, a superset of them."""
    source = random.Random(2)
    scores = [{j: source.gauss(0, 1) for j in range(1, 10)} for _ in range(3)]
    sizes, sets = [], []
    for p in (0.0, 0.1, 0.3, 0.6, 0.99):
        wanted = wanted_blocks([p, p / 2, 0.2], [9, 9, 9])
        sizes.append(len(chosen_blocks(scores, wanted, pooled_blocks(wanted))))
        [alone] = wanted_blocks([p], [9])
        sets.append(set(chosen_blocks(scores[:1], [alone], pooled_blocks([alone]))))
        assert len(sets[-1]) == alone
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert all(a <= b for a, b in pairwise(sets))


def test_kept_blocks_may_change_with_p() -> None:
    """With several documents only the number is monotone: one that retrieves more can push a block
    of another one out."""
    scores = [{1: 5.0, 2: 1.0}, {1: 9.0, 2: 8.0, 3: 7.0}]
    assert chosen_blocks(scores, [2, 1], pooled_blocks([2, 1])) == [(0, 1), (1, 1)]
    assert chosen_blocks(scores, [2, 3], pooled_blocks([2, 3])) == [(1, 1), (1, 2), (1, 3)]
