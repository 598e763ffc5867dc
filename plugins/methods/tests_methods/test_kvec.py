"""K-VEC (docs/specification.md §2.8): its identities, its guaranteed share, and coverage where
heads repeat each other."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.methods.bases.eviction import PromptAttention
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch_methods.eviction import KVec
from tests.references.scores import attention_weights, group_mean
from tests.service.worker.methods.eviction.harness import (
    QK,
    Shape,
    evicted_kept,
    kept_by,
    random_layers,
    view_of,
)
from tests.service.worker.tiny import assert_close

pytestmark = pytest.mark.exhaustive

SHAPE = Shape(5, 60, 24)
WIDE = Shape(4, 150, 38)  # question longer than O' = 32


def prompt_of(method: KVec, shape: Shape, layer: int, kept_before: Tensor) -> PromptAttention:
    qk = random_layers(shape, 3)[layer]
    view = view_of(shape.layout, layer, qk, 4)
    facts = ModelFacts(4, 6, 2)
    observed = method.observe(view)
    return PromptAttention(
        layer=layer,
        layout=shape.layout,
        k=view.k,
        observed=observed,
        kept_before=kept_before,
        scale=view.scale,
        model=facts,
    )


# -- identities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("pool", "kernel"), [("none", 1), ("max7", 7)])
def test_without_coverage_it_is_snapkv(protect: bool, beta: float, pool: str, kernel: int) -> None:
    """λ = 0 and δ = 0, for any β."""
    for shape in (SHAPE, WIDE):
        layers = random_layers(shape, 3)
        for budget in (31, 45, 80):
            ours = KVec(budget=budget, protect=protect, lam=0.0, delta=0, beta=beta, pool=pool)
            snapkv = SnapKV(budget=budget, protect=protect, window=16, kernel=kernel)
            assert kept_by(ours, shape.layout, layers) == kept_by(snapkv, shape.layout, layers)


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("lam", [0.5, 1.0, 50.0])
@pytest.mark.parametrize(("pool", "kernel"), [("none", 1), ("max7", 7)])
def test_where_all_is_guaranteed_it_is_snapkv(
    protect: bool, lam: float, pool: str, kernel: int
) -> None:
    """δ = 0 and β·B of at least B − O, for any λ."""
    layers = random_layers(SHAPE, 3)
    for budget in (31, 45, 80):
        ours = KVec(budget=budget, protect=protect, lam=lam, delta=0, beta=1.0, pool=pool)
        snapkv = SnapKV(budget=budget, protect=protect, window=16, kernel=kernel)
        assert kept_by(ours, SHAPE.layout, layers) == kept_by(snapkv, SHAPE.layout, layers)


def test_all_heads_unfocused_is_the_longer_window() -> None:
    """δ of at least the KV heads and λ = 0: SnapKV's ranking over O' rows, O kept."""
    layers = random_layers(WIDE, 3)
    for delta in (2, 3, 99):
        ours = KVec(budget=60, delta=delta, lam=0.0)
        wide = SnapKV(budget=60, window=32, kernel=1)
        assert kept_by(ours, WIDE.layout, layers) == kept_by(wide, WIDE.layout, layers)
    assert kept_by(KVec(budget=60, delta=1, lam=0.0), WIDE.layout, layers) != kept_by(
        KVec(budget=60, delta=2, lam=0.0), WIDE.layout, layers
    )


# -- scores ---------------------------------------------------------------------------------------


def test_first_layer_focus_is_importance() -> None:
    """Nothing was kept before: P' = P + λ·I, I the largest head of every row, then the mean."""
    method = KVec(budget=40, delta=0, beta=0.0, lam=2.0)
    prompt = prompt_of(method, SHAPE, 0, torch.zeros(SHAPE.tokens, dtype=torch.long))
    weights = prompt.query_attention()[:, -16:, : SHAPE.tokens - 16]
    expected = weights.mean(1) + 2 * weights.amax(0).mean(0)
    assert_close("kvec: P'", method.score(prompt)[:, : SHAPE.tokens - 16], expected)


def test_focus_fades_with_the_layers_that_kept_a_token() -> None:
    """At layer 3, kept by all earlier ones: a quarter of the focus of one that none kept."""
    method = KVec(budget=40, delta=0, beta=0.0, lam=1.0)
    n, candidates = SHAPE.tokens, SHAPE.tokens - 16
    none = torch.zeros(n, dtype=torch.long)
    fresh, seen, bare = (
        given.score(prompt_of(given, SHAPE, 3, before))[:, :candidates]
        for given, before in (
            (method, none),
            (method, none + 3),
            (replace(method, lam=0.0), none),
        )
    )
    assert_close("kvec: focus", seen - bare, (fresh - bare) / 4)
    assert bool((fresh > bare).all())


def test_least_focused_heads_use_the_longer_window() -> None:
    """δ = 1 of two heads: the one with the lower deviation over O rows, and only it."""
    method = KVec(budget=60, delta=1, beta=0.0, lam=0.0)
    candidates = WIDE.tokens - 16
    for layer in range(4):
        prompt = prompt_of(method, WIDE, layer, torch.zeros(WIDE.tokens, dtype=torch.long))
        wide = prompt.query_attention()[:, :, :candidates]
        assert wide.shape[1] == 32
        narrow = wide[:, -16:].mean(1)
        flat = int(narrow.std(1).argmin())
        expected = narrow.clone()
        expected[flat] = wide.mean(1)[flat]
        assert_close("kvec: windows", method.score(prompt)[:, :candidates], expected)


def test_later_keys_count_rows_that_cannot_see_them() -> None:
    """A candidate inside O' is seen by fewer than O' rows; the denominator stays O'."""
    method = KVec(budget=60, delta=2, beta=0.0, lam=0.0)
    prompt = prompt_of(method, WIDE, 0, torch.zeros(WIDE.tokens, dtype=torch.long))
    at = WIDE.tokens - 20
    weights = prompt.query_attention()[0, :, at]
    assert int((weights > 0).sum()) == 20
    assert float(method.score(prompt)[0, at]) == pytest.approx(float(weights.sum()) / 32)


@pytest.mark.parametrize("pool", ["none", "max7"])
def test_a_heads_own_best_are_guaranteed(pool: str) -> None:
    """⌊β·B⌋ = 11 documents tokens by P survive a focus that would displace them all; with β = 0
    some do not."""
    layers = random_layers(SHAPE, 3)
    own = SnapKV(budget=29 + 11, window=16, kernel=7 if pool == "max7" else 1)
    best = kept_by(own, SHAPE.layout, layers)
    for beta, survive in ((0.25, True), (0.0, False)):
        method = KVec(budget=45, delta=0, lam=1e6, beta=beta, pool=pool)
        kept = kept_by(method, SHAPE.layout, layers)
        found = [
            set(few) <= set(many)
            for heads, more in zip(best, kept, strict=True)
            for few, many in zip(heads, more, strict=True)
        ]
        assert all(found) is survive


def test_beta_is_decimal() -> None:
    """⌊0.29 · 100⌋ is 29."""
    method = KVec(budget=100, protect=False, beta=0.29)
    prompt = prompt_of(method, WIDE, 0, torch.zeros(WIDE.tokens, dtype=torch.long))
    assert int(method.score(prompt)[0].isinf().sum()) == 29


# -- coverage -------------------------------------------------------------------------------------


def redundant(seed: int, layers: int = 12, kv_heads: int = 4) -> list[QK]:
    """Heads and layers that score alike: one direction says how much every token matters, and each
    head of each layer adds a little noise of its own."""
    source = torch.Generator().manual_seed(seed)
    n = 192
    shared = torch.randn(n, generator=source)
    out = []
    for _ in range(layers):
        q = torch.zeros(n, kv_heads, 8)
        q[:, :, 0] = 8**0.5
        k = 0.25 * torch.randn(n, kv_heads, 8, generator=source)
        k[:, :, 0] += shared[:, None]
        out.append((q, k))
    return out


def test_coverage_rises_where_heads_repeat_each_other() -> None:
    """Of 192 tokens at budget 48, over twelve seeds: at least 4 points over SnapKV with the same
    window and no pooling in every one, and 7 on average."""
    shape = Shape(0, 160, 32)
    gains = []
    for seed in range(12):
        layers = redundant(seed)
        ours = evicted_kept(KVec(budget=48, protect=False), shape.layout, layers)[1]
        snapkv = SnapKV(budget=48, window=16, kernel=1, protect=False)
        gains.append(ours - evicted_kept(snapkv, shape.layout, layers)[1])
    assert min(gains) > 0.04 and mean(gains) > 0.07, gains


def test_importance_is_of_kv_heads() -> None:
    """The group's mean first, then the largest: not the largest query head."""
    method = KVec(budget=40, delta=0, beta=0.0, lam=1.0)
    prompt = prompt_of(method, SHAPE, 0, torch.zeros(SHAPE.tokens, dtype=torch.long))
    q, k = random_layers(SHAPE, 3)[0]
    rows = range(SHAPE.tokens - 16, SHAPE.tokens)
    means = torch.tensor(group_mean(attention_weights(q, k, rows), 2, rows))
    importance = means.amax(0).mean(0)
    ours = method.score(prompt) - replace(method, lam=0.0).score(prompt)
    assert_close("kvec: importance", ours[0, : rows.start], importance[: rows.start])
