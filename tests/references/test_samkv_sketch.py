"""The reference of SamKV's precompute, on numbers made by hand (docs/specification.md §1.7 P2–P6;
§1.9 T11)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from tests.references.samkv_sketch import (
    FLOOR,
    Sketch,
    block_ranges,
    column,
    document_sketches,
    fixed_blocks,
    low_outliers,
    middle_blocks,
    outlier_blocks,
    power_law,
    representative,
    sketch_of,
    token_masses,
    tokens_of,
)
from tests.references.samkv_toys import causal, noise
from tests.service.worker.tiny import BOS, S, Tiny, assert_close, difference

DOCUMENT = [random.Random(3).randrange(2, 101) for _ in range(30)]


def stub(alphas: Sequence[float | None], masses: Sequence[float | None] | None = None) -> Sketch:
    """Only the scalars."""
    count = len(alphas)
    empty = torch.zeros(1, 1)
    return Sketch(
        ranges=block_ranges(4 * count, 4),
        block_keys=torch.zeros(count, 1, 1),
        anchor=empty,
        local_query=empty,
        representatives=[None if a is None else 4 * j for j, a in enumerate(alphas)],
        masses=list(alphas if masses is None else masses),
        alphas=list(alphas),
    )


# -- P2, P3 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "fixed", "middle"),
    [
        (1, [0], []),
        (4, [0], []),
        (5, [0, 1], []),
        (12, [0, 1, 2], []),
        (13, [0, 2, 3], [1]),
        (22, [0, 4, 5], [1, 2, 3]),
    ],
)
def test_blocks(tokens: int, fixed: list[int], middle: list[int]) -> None:
    """init is the first, local the last two, the rest is middle and always whole."""
    ranges = block_ranges(tokens, 4)
    assert tokens_of(range(len(ranges)), ranges) == list(range(tokens))
    assert fixed_blocks(len(ranges)) == fixed
    assert middle_blocks(len(ranges)) == middle
    assert all(len(ranges[j]) == 4 for j in middle)


def test_means() -> None:
    """22 tokens: blocks of 4 and one of 2; the anchor counts tokens, not blocks."""
    k, q = noise(22, 2, 3), noise(22, 4, 3)
    sketch = sketch_of(k, q, causal(22), 4, 3)
    assert sketch.block_keys.shape == (6, 2, 3)
    assert_close("block key", sketch.block_keys[2], (k[8] + k[9] + k[10] + k[11]) / 4)
    assert_close("last block key", sketch.block_keys[5], (k[20] + k[21]) / 2)
    assert_close("anchor", sketch.anchor, torch.cat([k[:4], k[16:]]).sum(0) / 10)
    assert_close("local query", sketch.local_query, q[16:].sum(0) / 6)
    short = sketch_of(k[:3], q[:3], causal(3), 4, 3)
    assert_close("short anchor", short.anchor, k[:3].mean(0))
    assert_close("short local query", short.local_query, q[:3].mean(0))
    assert short.middle == [] and short.most_important is None and short.least_important is None


# -- P4, P5 ---------------------------------------------------------------------------------------


def test_masses() -> None:
    """Mean over strictly later queries; the last `min_later` tokens are unscored."""
    a = causal(20)
    masses = token_masses(a)
    assert masses[4:] == [None] * 16 and None not in masses[:4]
    assert masses[3] == pytest.approx(float(a[4:, 3].mean()))
    assert token_masses(a, 0)[19] is None
    assert representative(range(0, 4), [0.1, 0.3, 0.3, None]) == 1
    assert representative(range(0, 2), [None, None]) is None


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0, 1.6])
def test_alpha_of_a_power_law(alpha: float) -> None:
    """T11: exact without noise, within 2 % with noise of 5 %; scale does not matter."""
    ys = [0.4 * x**-alpha for x in range(1, 200)]
    assert power_law(ys) == pytest.approx(alpha, rel=1e-9)
    source = random.Random(7)
    noisy = power_law([y * math.exp(source.gauss(0, 0.05)) for y in ys])
    assert noisy == pytest.approx(alpha, rel=0.02)


def test_alpha_at_the_edges() -> None:
    assert power_law([]) is None and power_law([0.5]) is None
    assert power_law([0.5, 0.25]) == pytest.approx(1.0)
    assert power_law([0.3, 0.3, 0.3]) == pytest.approx(0.0)
    assert power_law([1.0, 0.0]) == pytest.approx(-math.log2(FLOOR))


def test_alpha_through_the_matrix() -> None:
    """A bright line at token 9 that decays as x^-0.5 from 0.5 on; its block's α is 0.5."""
    a = causal(40)
    for q in range(10, 40):
        a[q, 9] = 0.5 * (q - 9) ** -0.5
    sketch = sketch_of(noise(40, 1, 2), noise(40, 1, 2), a, 4)
    assert sketch.representatives[2] == 9
    assert sketch.alphas[2] == pytest.approx(0.5, rel=1e-5)
    assert column(a, 9)[0] == pytest.approx(0.5)
    assert sketch.masses[2] == pytest.approx(sum(0.5 * x**-0.5 for x in range(1, 31)) / 30)


def test_extreme_blocks() -> None:
    """Only middle blocks, only scored ones, lower index first among equals."""
    sketch = stub([0.0, 0.5, None, 0.3, 0.3, 0.0, 0.0], [0.0, 0.2, None, 0.2, 0.9, 0.0, 0.0])
    assert sketch.most_important == 3 and sketch.least_important == 1
    nothing = stub([0.1, None, None, 0.1, 0.1])
    assert nothing.most_important is None and nothing.least_important is None


def test_document_sketches(any_family: Tiny) -> None:
    """The prefix is seen but not counted: with it masses differ, and its rows are in no block.
    Layer 0 sees no difference before RoPE."""
    reference = any_family.reference
    bare = document_sketches(reference, DOCUMENT, (), 4, 3)
    behind = document_sketches(reference, DOCUMENT, S, 4, 3)
    assert len(bare) == len(behind) == reference.layers
    assert_close("layer 0 keys", behind[0].block_keys, bare[0].block_keys)
    assert_close("layer 0 queries", behind[0].local_query, bare[0].local_query)
    assert difference(behind[2].block_keys, bare[2].block_keys) > 1e-3
    for layer in range(reference.layers):
        stored = reference.precompute(DOCUMENT, S).k_pre[layer]
        assert_close("block key", behind[layer].block_keys[3], stored[12:16].mean(0))
        assert behind[layer].ranges[-1] == range(28, 30)
        known = [m for m in behind[layer].masses if m is not None]
        assert known != [m for m in bare[layer].masses if m is not None]
        assert all(0 <= m <= 1 for m in known)
        assert behind[layer].masses[-1] is None  # 28 and 29 have one later query and none
    [single] = {len(s.ranges) for s in document_sketches(reference, [BOS], (), 4)}
    assert single == 1


# -- P6 -------------------------------------------------------------------------------------------


def test_three_deviations_need_eleven_blocks() -> None:
    assert low_outliers([1.0] * 8 + [-100.0]) == []
    assert low_outliers([1.0] * 11 + [-100.0]) == [11]
    assert low_outliers([1.0] * 11 + [100.0]) == []
    assert low_outliers([]) == [] and low_outliers([1.0, 1.0]) == []
    assert low_outliers([1.0, 1.0, 0.0], deviations=1.0) == [2]


def test_outlier_pools() -> None:
    """Two documents of eight scored blocks: never alone, together one; unscored ones are out."""
    first = stub([None, 1.0, 1.0, -9.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    second = stub([1.0] * 8 + [None])
    assert outlier_blocks([first, second]) == [[], []]
    assert outlier_blocks([first, second], "request") == [[3], []]
    assert outlier_blocks([second, first], "request") == [[], [3]]
    long = stub([1.0] * 12 + [0.0])
    assert outlier_blocks([second, long]) == [[], [12]]
    assert outlier_blocks([]) == [] and outlier_blocks([], "request") == []
