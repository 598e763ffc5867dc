"""The reference of kept sets: docs/specification.md §2's invariants, and small cases worked by
hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.references.eviction import (
    Kept,
    Region,
    ada_pyramidkv,
    ada_snapkv,
    attention_weights,
    coverage,
    gemfilter,
    h2o,
    headkv,
    kvec,
    last_row_logits,
    pyramidkv,
    snapkv,
    streaming_llm,
)
from tests.references.prefill import snapkv_kept
from tests.references.scores import mean_of_rows, pool, window_scores

pytestmark = pytest.mark.exhaustive

KV_HEADS, GROUP, LAYERS, D = 2, 3, 4, 8
SYSTEM, QUESTION, N = 5, 9, 54
HEAD_SCORES = [[1.0 + h + 3 * layer for h in range(KV_HEADS * GROUP)] for layer in range(LAYERS)]

Method = Callable[[list[Tensor], Region], Kept]
METHODS: dict[str, Method] = {
    "streaming_llm": lambda a, r: streaming_llm(len(a), KV_HEADS, r),
    "h2o": lambda a, r: h2o(a, KV_HEADS, r),
    "snapkv": lambda a, r: snapkv(a, KV_HEADS, r),
    "pyramidkv": lambda a, r: pyramidkv(a, KV_HEADS, r),
    "ada_snapkv": lambda a, r: ada_snapkv(a, KV_HEADS, r),
    "ada_pyramidkv": lambda a, r: ada_pyramidkv(a, KV_HEADS, r),
    "headkv": lambda a, r: headkv(a, KV_HEADS, r, HEAD_SCORES),
    "kvec": lambda a, r: kvec(a, KV_HEADS, r),
    "gemfilter": lambda a, r: [[gemfilter(a[0][0, -1], r)] * KV_HEADS] * len(a),
}
SAME_COUNT = {"streaming_llm", "h2o", "snapkv", "kvec", "gemfilter"}


def random_qk(n: int = N, group: int = GROUP, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    q = 1.5 * torch.randn(n, KV_HEADS * group, D, generator=source)
    return q, 1.5 * torch.randn(n, KV_HEADS, D, generator=source)


def random_attention(n: int = N, layers: int = LAYERS, seed: int = 0) -> list[Tensor]:
    return [attention_weights(*random_qk(n, seed=100 * seed + layer)) for layer in range(layers)]


def region(budget: int = 30, window: int = 4, protect: bool = True, n: int = N) -> Region:
    return Region(n, SYSTEM, QUESTION, budget, window, protect)


@pytest.fixture(scope="module")
def attentions() -> list[Tensor]:
    with torch.no_grad():
        return random_attention()


# -- every method ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("window", [1, 4, 9, 32])
def test_budget_is_spent_exactly(
    name: str, protect: bool, window: int, attentions: list[Tensor]
) -> None:
    """The total over layers and heads is layers · heads · B; always kept tokens are there; sets
    are ascending and without doubles; methods of one count have it everywhere."""
    for budget in (14, 15, 20, 33, 53) if protect else (2, 5, 14, 20, 53):
        case = region(budget, window, protect)
        kept = METHODS[name](attentions, case)
        heads = [head for layer in kept for head in layer]
        assert len(kept) == LAYERS and all(len(layer) == KV_HEADS for layer in kept)
        assert sum(len(head) for head in heads) == LAYERS * KV_HEADS * budget
        assert all(head == sorted(set(head)) and head[0] >= 0 for head in heads)
        assert all(head[-1] < N for head in heads)
        if name in SAME_COUNT:
            assert {len(head) for head in heads} == {budget}
        if protect:
            fixed = {*range(SYSTEM), *range(N - QUESTION, N)}
        elif name in ("gemfilter", "streaming_llm"):
            fixed = set() if name == "gemfilter" else {*range(min(4, budget - 1)), N - 1}
        else:
            fixed = {*range(N - min(window, QUESTION, budget - 1), N)}
        assert all(fixed <= set(head) for head in heads)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("protect", [True, False])
def test_a_budget_that_fits_is_the_identity(
    name: str, protect: bool, attentions: list[Tensor]
) -> None:
    for budget in (N, N + 1, 1000):
        kept = METHODS[name](attentions, region(budget, protect=protect))
        assert kept == [[list(range(N))] * KV_HEADS] * LAYERS


@pytest.mark.parametrize("name", METHODS)
def test_budget_below_system_and_question(name: str, attentions: list[Tensor]) -> None:
    """Protected tokens outlive any budget; no document token does."""
    fixed = [*range(SYSTEM), *range(N - QUESTION, N)]
    for budget in (1, 13, 14):
        kept = METHODS[name](attentions, region(budget))
        assert all(head == fixed for layer in kept for head in layer)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"streaming_llm", "h2o", "gemfilter"}))
def test_flat_attention_keeps_the_first(name: str) -> None:
    """Every candidate scores the same: the lowest indices win. (Row i gives 1/(i+1) to each of its
    keys, so candidates tie exactly; H2O's column sums fall with the index, K-VEC's later layers
    turn to what the first ones left.)"""
    flat = torch.zeros(KV_HEADS * GROUP, N, N)
    for i in range(N):
        flat[:, i, : i + 1] = 1 / (i + 1)
    case = Region(N, 0, 4, 20, 4, protect=False)
    kept = METHODS[name]([flat] * LAYERS, case)
    for layer in kept[:1] if name == "kvec" else kept:
        for head in layer:
            free = len(head) - 4
            assert head == [*range(free), *range(N - 4, N)]


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"headkv"}))
def test_grouped_heads_with_one_attention_are_one_head(name: str) -> None:
    """G = 3 equal query heads per KV head give what G = 1 gives."""
    single = [attention_weights(*random_qk(group=1, seed=s)) for s in range(2)]
    tripled = [a.repeat_interleave(3, dim=0) for a in single]
    case = region(window=9)
    assert METHODS[name](single, case) == METHODS[name](tripled, case)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"h2o"}))
def test_only_the_questions_rows_are_read(name: str, attentions: list[Tensor]) -> None:
    """Rows that a fusion method never computed stay unread."""
    partial = [a.clone() for a in attentions]
    for a in partial:
        a[:, : N - QUESTION] = float("nan")
    for protect in (True, False):
        case = region(window=32, protect=protect)
        assert METHODS[name](partial, case) == METHODS[name](attentions, case)


# -- one by one -----------------------------------------------------------------------------------


def test_attention_weights_are_causal_softmax() -> None:
    q, k = random_qk(12)
    weights = attention_weights(q, k)
    full = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(GROUP, 1)) / D**0.5
    full = full.masked_fill(torch.ones(12, 12).triu(1).bool(), float("-inf"))
    assert torch.allclose(weights, full.softmax(-1), atol=1e-6)
    some = attention_weights(q, k, rows=[3, 11])
    assert some[:, [3, 11]].equal(weights[:, [3, 11]]) and some[:, 4].isnan().all()


def test_pool_by_hand() -> None:
    assert pool([1.0, 5.0, 2.0, 0.0], 3) == [5, 5, 5, 2]
    assert pool([-1.0, -5.0, -2.0], 3) == [-1, -1, -2]  # padding never wins
    assert pool([3.0, 6.0, 9.0], 3, "avg") == [3, 6, 5]  # padding counts as 0
    assert pool([3.0, 6.0], 1, "avg") == pool([3.0, 6.0], 1) == [3, 6]


def test_streaming_llm_by_hand() -> None:
    def kept(case: Region) -> list[int]:
        return streaming_llm(1, 1, case)[0][0]

    assert kept(Region(20, 2, 3, 9, protect=False)) == [0, 1, 2, 3, 15, 16, 17, 18, 19]
    assert kept(Region(20, 2, 3, 3, protect=False)) == [0, 1, 19]
    assert kept(Region(20, 5, 3, 10)) == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19]  # S holds the sinks
    assert kept(Region(20, 2, 3, 10)) == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]
    assert kept(Region(20, 2, 3, 6)) == [0, 1, 2, 17, 18, 19]
    assert kept(Region(20, 2, 3, 9)) == [0, 1, 2, 3, 15, 16, 17, 18, 19]


def test_h2o_sums_columns(attentions: list[Tensor]) -> None:
    """Against a tensor expression; a subset of rows counts only these."""
    rows = [7, 20, *range(N - QUESTION, N)]
    for given, used in ((None, range(N)), (rows, rows)):
        kept = h2o(attentions, KV_HEADS, region(25, 8), given)
        for layer, attention in enumerate(attentions):
            sums = attention.reshape(KV_HEADS, GROUP, N, N)[:, :, list(used)].sum((1, 2))
            for head in range(KV_HEADS):
                best = sums[head, SYSTEM : N - QUESTION].topk(11).indices + SYSTEM
                expected = {*range(SYSTEM), *range(N - QUESTION, N), *best.tolist()}
                assert kept[layer][head] == sorted(expected)


def test_h2o_favours_early_tokens() -> None:
    flat = torch.tril(torch.ones(1, N, N)) / torch.arange(1, N + 1)[:, None]
    assert h2o([flat], 1, region(20, 4, protect=False))[0][0] == [*range(16), *range(50, 54)]


@pytest.mark.parametrize("window", [1, 4, 32])
@pytest.mark.parametrize("kernel", [1, 5, 7])
def test_snapkv_is_the_older_reference(window: int, kernel: int) -> None:
    for seed in range(3):
        q, k = random_qk(seed=seed)
        expected = snapkv_kept(
            q, k, system=SYSTEM, question=QUESTION, budget=25, window=window, kernel=kernel
        )
        case = region(25, window)
        assert snapkv([attention_weights(q, k)], KV_HEADS, case, kernel) == [expected]


def test_pool_sees_every_token_before_the_window(attentions: list[Tensor]) -> None:
    """A peak just outside the documents lifts the document tokens beside it: pooling covers S and
    the question's early tokens, but not the window."""
    peaked = torch.zeros(KV_HEADS * GROUP, N, N)
    peaked[:, :, SYSTEM - 1] = 1.0
    scores = window_scores(peaked, KV_HEADS, region(window=4))
    assert len(scores[0]) == N - 4
    assert [t for t, s in enumerate(scores[0]) if s] == [1, 2, 3, 4, 5, 6, 7]
    inside = torch.zeros(KV_HEADS * GROUP, N, N)
    inside[:, :, N - 4] = 1.0  # the window's first token
    assert not any(window_scores(inside, KV_HEADS, region(window=4))[0])


def test_pyramid_is_wide_below(attentions: list[Tensor]) -> None:
    """b = 16 of 40 competitors: 32 − 0 down to 0; every layer's set is SnapKV's of its count."""
    kept = pyramidkv(attentions, KV_HEADS, region(30))
    counts = [len(layer[0]) - SYSTEM - QUESTION for layer in kept]
    assert counts == [32, 21, 11, 0]  # 32, 21⅓, 10⅔, 0
    for layer, count in enumerate(counts):
        single = snapkv([attentions[layer]], KV_HEADS, region(SYSTEM + QUESTION + count))
        assert kept[layer] == single[0]
    assert pyramidkv(attentions, KV_HEADS, region(43)) == snapkv(
        attentions, KV_HEADS, region(43)
    )  # T = 54 < 2 · 29


def test_ada(attentions: list[Tensor]) -> None:
    """α = 1 is SnapKV (PyramidKV); equal heads are SnapKV; a sharp head takes from a flat one."""
    case = region(30)
    assert ada_snapkv(attentions, KV_HEADS, case, alpha=1.0) == snapkv(attentions, KV_HEADS, case)
    assert ada_pyramidkv(attentions, KV_HEADS, case, alpha=1.0) == pyramidkv(
        attentions, KV_HEADS, case
    )
    twins = [a[:GROUP].repeat(2, 1, 1) for a in attentions]
    for b in range(15, 54):
        case = region(b)
        assert ada_snapkv(twins, KV_HEADS, case) == snapkv(twins, KV_HEADS, case)
        assert ada_pyramidkv(twins, KV_HEADS, case) == pyramidkv(twins, KV_HEADS, case)
    uneven = [a.clone() for a in attentions]
    for a in uneven:
        a[GROUP:] *= 1e-6  # the second KV head never wins
    for layer in ada_snapkv(uneven, KV_HEADS, region(30)):
        first, second = (len(head) - SYSTEM - QUESTION for head in layer)
        assert first + second == 32
        assert (first, second) == (29, 3)  # 0.8 · 32 + 0.2 · 16, 0.2 · 16


def test_headkv(attentions: list[Tensor]) -> None:
    """Equal scores are SnapKV; kept sets are SnapKV's of the count; better heads keep more."""
    case = region(30)
    equal = [[0.3] * 6] * LAYERS
    assert headkv(attentions, KV_HEADS, case, equal) == snapkv(attentions, KV_HEADS, case)
    kept = headkv(attentions, KV_HEADS, case, HEAD_SCORES)
    counts = [len(head) for layer in kept for head in layer]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            single = snapkv([attentions[layer]], KV_HEADS, region(len(kept[layer][head])))
            assert kept[layer][head] == single[0][head]


def test_gemfilter_by_hand() -> None:
    logits = torch.tensor([0.0, 0, 0, 10, 0, 0, 0, 0, 5, 0, 0, 0])
    case = Region(12, 2, 2, 7, protect=False)
    assert gemfilter(logits, case) == [1, 2, 3, 4, 5, 6, 7]  # 2 each, then 1: 6 and 7 first
    assert gemfilter(logits, Region(12, 2, 2, 7)) == [0, 1, 2, 3, 4, 10, 11]
    negative = torch.full((12,), -1.0)
    assert gemfilter(negative, Region(12, 2, 2, 4, protect=False)) == [0, 1, 10, 11]  # edges


def test_gemfilter_logits_are_raw() -> None:
    q, k = random_qk(12)
    expected = torch.einsum("hd,jhd->j", q[-1], k.repeat_interleave(GROUP, 1))
    assert torch.allclose(last_row_logits(q, k), expected, atol=1e-4)


def test_mean_counts_rows_before_the_token(attentions: list[Tensor]) -> None:
    """A row earlier than t adds 0 and stays in the denominator."""
    mean = mean_of_rows(attentions[0], KV_HEADS, range(10, 20))
    only = mean_of_rows(attentions[0], KV_HEADS, [19])
    assert mean[0][19] == pytest.approx(only[0][19] / 10)


def test_coverage_metric() -> None:
    assert coverage([[[0, 1], [1, 2]], [[0, 5], [0, 1]]], 8) == 0.5
