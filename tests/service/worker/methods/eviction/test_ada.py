"""Ada-SnapKV and Ada-PyramidKV (docs/specification.md §2.5): heads of one layer share by need."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.worker.methods.eviction.ada_pyramidkv import Method as AdaPyramidKV
from kvstitch.service.worker.methods.eviction.ada_snapkv import Method as AdaSnapKV
from kvstitch.service.worker.methods.eviction.pyramidkv import Method as PyramidKV
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from tests.service.worker.methods.eviction.harness import Shape, kept_by, random_layers

SHAPE = Shape(5, 60, 6)


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("budget", [13, 20, 33, 50, 70])
def test_alpha_one_is_the_method_without_ada(budget: int, protect: bool) -> None:
    for seed in range(3):
        layers = random_layers(SHAPE, 3, seed)
        for ada, plain in ((AdaSnapKV, SnapKV), (AdaPyramidKV, PyramidKV)):
            ours = kept_by(ada(budget=budget, protect=protect, alpha=1.0), SHAPE.layout, layers)
            assert ours == kept_by(plain(budget=budget, protect=protect), SHAPE.layout, layers)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_equal_heads_are_the_method_without_ada(alpha: float) -> None:
    """Four KV heads with one score each get the same count, ties included, at every budget."""
    layers = [
        (q.repeat(1, 4, 1), k.repeat(1, 4, 1)) for q, k in random_layers(SHAPE, 1, kv_heads=1)
    ]
    for budget in range(12, 71):
        for ada, plain in ((AdaSnapKV, SnapKV), (AdaPyramidKV, PyramidKV)):
            ours = kept_by(ada(budget=budget, alpha=alpha), SHAPE.layout, layers)
            assert ours == kept_by(plain(budget=budget), SHAPE.layout, layers)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.0, [32, 0]), (0.2, [29, 3]), (0.5, [24, 8]), (1.0, [16, 16])]
)
def test_a_sharp_head_takes_from_one_that_looks_elsewhere(
    alpha: float, expected: list[int]
) -> None:
    """Head 0 attends to documents; head 1 only to the question, so every score of it is smaller.
    b = 16: (1 - α) of the 32 that head 0 wins, and α·16 for each."""
    n = SHAPE.tokens
    q, k = torch.zeros(n, 2, 8), torch.zeros(n, 2, 8)
    source = torch.Generator().manual_seed(0)
    q[:, :, 0] = 1.0
    k[:, 0, 0] = torch.rand(n, generator=source)
    k[:, 1, 0] = torch.rand(n, generator=source)
    k[SHAPE.system + SHAPE.document :, 1, 0] += 60.0
    kept = kept_by(AdaSnapKV(budget=27, alpha=alpha, kernel=1), SHAPE.layout, [(q, k)])
    assert [len(head) - 11 for head in kept[0]] == expected


def test_every_head_has_its_floor() -> None:
    """At least ⌊α·b⌋, whatever the scores; the sum of a layer is exact."""
    for seed in range(5):
        layers = random_layers(SHAPE, 1, seed, kv_heads=5)
        kept = kept_by(AdaSnapKV(budget=31, alpha=0.37), SHAPE.layout, layers)
        for heads in kept:
            counts = [len(head) - 11 for head in heads]
            assert sum(counts) == 5 * 20 and min(counts) >= 7 and len(set(counts)) > 1
