"""The reference of K-VEC: the invariants of docs/specification.md §2.8 and the coverage it is meant
to raise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.references.eviction import Region, coverage, kvec, snapkv
from tests.references.kvec import kvec_layers
from tests.references.test_eviction import KV_HEADS, LAYERS, N, random_attention, region

POOLING = {"none": 1, "max7": 7}  # and SnapKV's kernel of the same pooling


@pytest.fixture(scope="module")
def attentions() -> list[Tensor]:
    with torch.no_grad():
        return random_attention(seed=7)


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("pooling", ["none", "max7"])
@pytest.mark.parametrize("budget", [16, 30, 50])
def test_where_kvec_is_snapkv(
    protect: bool, pooling: str, budget: int, attentions: list[Tensor]
) -> None:
    case = region(budget, 4, protect)
    expected = snapkv(attentions, KV_HEADS, case, POOLING[pooling])
    for beta in (0.0, 0.25, 1.0):
        assert expected == kvec(
            attentions, KV_HEADS, case, lam=0, delta=0, beta=beta, pooling=pooling
        )
    for lam in (0.0, 1.0, 5.0):  # β · B >= b: nothing is left to λ
        assert expected == kvec(
            attentions, KV_HEADS, case, lam=lam, delta=0, beta=1.0, pooling=pooling
        )


def test_lambda_and_delta_matter(attentions: list[Tensor]) -> None:
    case = region(25, 4)
    plain = snapkv(attentions, KV_HEADS, case, 1)
    assert kvec(attentions, KV_HEADS, case, delta=0) != plain
    assert kvec(attentions, KV_HEADS, case, lam=0) != plain


def test_heads_with_the_lowest_deviation_are_widened(attentions: list[Tensor]) -> None:
    """δ >= Hkv is a window of O' for all; δ = 1 leaves the more focused head alone."""
    case, wide = region(25, 4), region(25, 8)
    none = kvec_layers(attentions, KV_HEADS, case, delta=0)
    one = kvec_layers(attentions, KV_HEADS, case, delta=1)
    both = kvec_layers(attentions, KV_HEADS, case, delta=5, extended=8)
    eight = kvec_layers(attentions, KV_HEADS, wide, delta=0)
    for layer in range(LAYERS):
        flat = min(range(KV_HEADS), key=lambda g: none[layer].deviation[g])
        assert one[layer].widened == [flat]
        assert one[layer].base[1 - flat] == none[layer].base[1 - flat]
        assert one[layer].base[flat] != none[layer].base[flat]
        assert sorted(both[layer].widened) == [0, 1]
        for head in range(KV_HEADS):
            shared = range(wide.candidates)
            assert [both[layer].base[head][t] for t in shared] == eight[layer].base[head]


def test_layer_invariants(attentions: list[Tensor]) -> None:
    """Layer 0: focus = I. Preserved ⊂ kept, and the top by P. Coverage <= l/(l+1), counted by
    hand. P' of the preserved is 1."""
    for protect in (True, False):
        case = region(25, 4, protect)
        layers = kvec_layers(attentions, KV_HEADS, case)
        assert layers[0].focus == layers[0].importance
        for number, layer in enumerate(layers):
            for head in range(KV_HEADS):
                preserved = layer.preserved[head]
                assert len(preserved) == 6  # ⌊25 / 4⌋
                assert set(preserved) <= set(layer.kept[head])
                lowest = min(layer.base[head][t] for t in preserved)
                rest = set(case.competitors) - set(preserved)
                assert all(layer.base[head][t] <= lowest for t in rest)
                assert all(layer.score[head][t] == 1 for t in preserved)
            for t in case.competitors:
                times = sum(any(t in head for head in earlier.kept) for earlier in layers[:number])
                assert layer.coverage[t] == times / (number + 1) <= number / (number + 1)
                assert layer.focus[t] == layer.importance[t] * (1 - layer.coverage[t])


def test_importance_is_the_mean_of_row_maxima(attentions: list[Tensor]) -> None:
    case = region(25, 4)
    grouped = attentions[0].reshape(KV_HEADS, -1, N, N).mean(1)
    expected = grouped[:, -4:, : N - 4].amax(0).mean(0)
    ours = kvec_layers(attentions, KV_HEADS, case)[0].importance
    assert torch.allclose(torch.tensor(ours), expected, atol=1e-6)


def test_state_starts_afresh_with_every_prompt(attentions: list[Tensor]) -> None:
    longer = random_attention(N + 9, seed=8)
    before = kvec(attentions, KV_HEADS, region(25))
    kvec(longer, KV_HEADS, Region(N + 9, 5, 9, 25, 4))
    assert kvec(attentions, KV_HEADS, region(25)) == before


def redundant(seed: int, n: int = 96, layers: int = 8, heads: int = 4) -> list[Tensor]:
    """Attention of the last 16 rows: all heads and layers agree but for a little noise."""
    source = torch.Generator().manual_seed(seed)
    shared = 2 * torch.randn(n, generator=source)
    out = []
    for _ in range(layers):
        logits = shared + 0.3 * torch.randn(heads, n, n, generator=source)
        logits = logits.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        out.append(logits.softmax(-1))
    return out


def test_coverage_rises_where_heads_and_layers_are_redundant() -> None:
    """The one case in which §2.8 expects it; mean over seeds, with a margin."""
    gains = []
    for seed in range(6):
        attention = redundant(seed)
        case = Region(96, 0, 16, 32, 16, protect=False)
        ours = coverage(kvec(attention, 4, case, delta=0), 96)
        gains.append(ours - coverage(snapkv(attention, 4, case, 1), 96))
    assert sum(gains) / len(gains) > 0.01, gains
