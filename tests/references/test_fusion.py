"""The references of CacheBlend, LegoLink and the operation count."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.references.fusion import (
    Shape,
    always_computed,
    cacheblend,
    cacheblend_computed,
    cacheblend_selected,
    cached_documents,
    deviation,
    finished_rows,
    flops,
    legolink,
    legolink_rows,
    share,
    top,
    visible_pairs,
)
from tests.references.prefill import Prompt, Trace
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_close, difference

pytestmark = pytest.mark.exhaustive

START1 = len(S)
START2, START3 = START1 + len(D1), START1 + len(D1) + len(D2)
N = START3 + len(D3) + len(Q)


def same(claim: str, ours: Trace, expected: Trace) -> None:
    """Last logits and the cache of every layer."""
    assert_close(f"{claim}: logits", ours.logits[-1], expected.logits[-1])
    for layer in range(len(ours.k)):
        assert_close(f"{claim}: K", ours.k[layer], expected.k[layer])
        assert_close(f"{claim}: V", ours.v[layer], expected.v[layer])


def test_shares_are_exact_decimals() -> None:
    assert share(0.29, 100) == 29 and int(0.29 * 100) == 28
    assert (share(0.15, 39), share(0, 39), share(1, 39)) == (5, 0, 39)
    assert top([1.0, 3.0, 3.0, 2.0], [0, 1, 2, 3], 2) == [1, 2]
    assert top([3.0, 3.0, 3.0], [2, 1, 0], 1) == [0]


# -- LegoLink -------------------------------------------------------------------------------------


def test_legolink_rows(model: Tiny) -> None:
    prompt = model.prompt()
    assert legolink_rows(prompt, 1, 2) == [7, 16, 17, 18, 22, 23, 24, 31, 32]
    assert legolink_rows(prompt, 0, 0) == []
    assert legolink_rows(prompt, 2, 0, skip_first_doc=True) == [18, 19, 24, 25]
    assert legolink_rows(prompt, 3, 3) == [
        7,
        8,
        9,
        15,
        16,
        17,
        *range(18, 24),
        24,
        25,
        26,
        30,
        31,
        32,
    ]
    assert legolink_rows(prompt) == cached_documents(prompt)
    assert legolink_rows(model.prompt(uncached=[2]), 1, 0) == [7, 24]
    later = model.prompt(documents=([], D2, D3))
    assert legolink_rows(later, 1, 0, skip_first_doc=True) == [13]


def test_legolink_limits(any_family: Tiny) -> None:
    """No rows: PIE (T2). All rows: Vanilla (T1), as S's cache is exact."""
    reference, prompt = any_family.reference, any_family.prompt()
    same("legolink 0 is PIE", legolink(reference, prompt, 0, 0), reference.pie(prompt))
    whole = legolink(reference, prompt)
    same("legolink all is vanilla", whole, reference.vanilla(prompt.ids))
    for uncached in ([0], [2], [0, 1, 2, 3]):
        prompt = any_family.prompt(uncached=uncached)
        same(
            "legolink 0 is PIE, uncached", legolink(reference, prompt, 0, 0), reference.pie(prompt)
        )


# -- CacheBlend -----------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["V", "K"])
@pytest.mark.parametrize("check_layer", [1, 2])
def test_cacheblend_limits(any_family: Tiny, metric: str, check_layer: int) -> None:
    """Ratio 1: Vanilla. 0: PIE with exact layers up to the check layer. Between: these layers'
    cache is exact for all tokens (T3), rows off the set are untouched above (T7)."""
    reference, prompt = any_family.reference, any_family.prompt()
    vanilla, placed = reference.vanilla(prompt.ids), reference.placed(prompt)
    full = cacheblend(reference, prompt, [1], metric=metric, check_layer=check_layer)
    same("cacheblend 1 is vanilla", full, vanilla)
    none = cacheblend(reference, prompt, [0], metric=metric, check_layer=check_layer)
    same("cacheblend 0", none, reference.pie(prompt, check_layer + 1))
    for ratio in (0.15, 0.4):
        ours = cacheblend(reference, prompt, [ratio], metric=metric, check_layer=check_layer)
        sets = cacheblend_computed(
            reference, prompt, [ratio], metric=metric, check_layer=check_layer
        )
        for layer in range(reference.layers):
            if layer <= check_layer:
                assert_close("cacheblend: exact K", ours.k[layer], vanilla.k[layer])
                assert_close("cacheblend: exact V", ours.v[layer], vanilla.v[layer])
                continue
            assert len(sets[layer]) == share(ratio, N) + len(Q)
            off = sorted({*range(N)} - {*sets[layer]})
            assert ours.k[layer][off].equal(placed[layer][0][off])
            assert ours.v[layer][off].equal(placed[layer][1][off])


def test_deviation(any_model: Tiny) -> None:
    """Layer 0 is exact; a document that was prefilled behind S is exact; K may be compared before
    RoPE; nothing is said of tokens without stored KV."""
    reference = any_model.reference
    prompt = any_model.prompt(prefix=S, uncached=[2])
    vanilla, placed = reference.vanilla(prompt.ids), reference.placed(prompt)
    factor = reference.rope_factor**2
    for metric in ("V", "K"):
        assert (
            max(deviation(prompt, vanilla, 0, metric)[t] for t in cached_documents(prompt)) < 1e-8
        )
        for layer in (1, 3):
            values = deviation(prompt, vanilla, layer, metric)
            assert max(values[:START2]) < 1e-7 < 1e-3 < min(values[START3 : N - len(Q)])
            assert all(v != v for v in [*values[START2:START3], *values[N - len(Q) :]])
            fresh, stored = (
                (vanilla.v, placed[layer][1]) if metric == "V" else (vanilla.k, placed[layer][0])
            )
            squares = ((fresh[layer] - stored) ** 2).sum((1, 2))[START3 : N - len(Q)]
            if metric == "K":
                squares = squares / factor
            assert_close("deviation", torch.tensor(values[START3 : N - len(Q)]), squares, 1e-3)


def test_exact_documents_are_chosen_last(any_family: Tiny) -> None:
    reference, prompt = any_family.reference, any_family.prompt(prefix=S)
    changed = list(range(START2, N - len(Q)))
    wanted = share(0.3, N)
    for metric in ("V", "K"):
        chosen = cacheblend_selected(reference, prompt, [0.3], metric=metric)[0]
        assert len(chosen) == wanted and set(chosen) <= set(changed)


def test_metrics_differ(any_family: Tiny) -> None:
    reference, prompt = any_family.reference, any_family.prompt()
    by_v = cacheblend_selected(reference, prompt, [0.3])
    assert by_v != cacheblend_selected(reference, prompt, [0.3], metric="K")


def test_gradual_schedule(any_family: Tiny) -> None:
    """Sets shrink within one another to ⌊r_i · n⌋; the first is that of the single ratio; a flat
    schedule is the single ratio; all ones are Vanilla; the last set stays."""
    reference, prompt = any_family.reference, any_family.prompt()
    ratios = [0.5, 0.3, 0.15]
    selected = cacheblend_selected(reference, prompt, ratios)
    assert [len(rows) for rows in selected] == [share(r, N) for r in ratios]
    assert all(set(b) < set(a) for a, b in pairwise(selected))
    assert selected[:1] == cacheblend_selected(reference, prompt, [0.5])
    sets = cacheblend_computed(reference, prompt, ratios)
    assert [len(rows) for rows in sets] == [N, N, *(len(s) + len(Q) for s in selected)]
    longer = cacheblend_computed(reference, prompt, [0.5, 0.3])
    assert longer[3] == longer[4] == sets[3]
    single = cacheblend(reference, prompt, [0.3])
    same("flat schedule", cacheblend(reference, prompt, [0.3] * 9), single)
    same("schedule of ones", cacheblend(reference, prompt, [1] * 4), reference.vanilla(prompt.ids))
    gradual = cacheblend(reference, prompt, ratios)
    assert difference(gradual.logits[-1], cacheblend(reference, prompt, [0.15]).logits[-1]) > 1e-3


def test_schedule_ranks_by_the_layers_own_deviation(any_family: Tiny) -> None:
    """The second set is the top of the first by the fresh V of the pass that computed the first."""
    reference, prompt = any_family.reference, any_family.prompt()
    first, second = cacheblend_selected(reference, prompt, [0.5, 0.2])
    one = cacheblend(reference, prompt, [0.5])
    stored = reference.placed(prompt)[2][1]
    values = ((one.v[2] - stored) ** 2).sum((1, 2)).tolist()
    assert second == sorted(sorted(first, key=lambda t: -values[t])[: share(0.2, N)])


@pytest.mark.parametrize("uncached", [[0], [1], [1, 3], [0, 1, 2, 3]])
def test_uncached_segments_are_computed_everywhere(any_family: Tiny, uncached: list[int]) -> None:
    """They are no candidates, are in every layer's set, and are not charged to p."""
    reference, prompt = any_family.reference, any_family.prompt(uncached=uncached)
    fixed, cached = set(always_computed(prompt)), set(cached_documents(prompt))
    for ratios in ([0.3], [0.4, 0.2]):
        for rows in cacheblend_selected(reference, prompt, ratios):
            assert set(rows) <= cached
        for rows in cacheblend_computed(reference, prompt, ratios):
            assert fixed <= set(rows)
        last = cacheblend_computed(reference, prompt, ratios)[-1]
        assert len(last) == len(fixed) + min(len(cached), share(ratios[-1], N))
    if len(uncached) == 4:
        same("all uncached", cacheblend(reference, prompt, [0]), reference.vanilla(prompt.ids))


# -- operations -----------------------------------------------------------------------------------

LLAMA_3_8B = Shape(4096, 14336, 32, 8, 128, 128256)
LAYERS, TOKENS, QUESTION = 32, 6000, 50


def tera(computed: list[list[int]], last: list[int]) -> float:
    return flops(LLAMA_3_8B, computed, finished_rows(computed, last)) / 1e12


def test_flops_by_hand() -> None:
    """h = 3, MLP 5, 2 heads on 1, d = 4, 7 words; rows 0 and 2 at one layer, 2 finished."""
    shape = Shape(3, 5, 2, 1, 4, 7)
    projected = 2 * 2 * 3 * (8 + 4 + 4)
    finished = 2 * 8 * 3 + 3 * 2 * 3 * 5 + 3 * 4 * 2 * 4
    assert flops(shape, [[0, 2]], [[2]]) == projected + finished + 2 * 3 * 7
    assert flops(shape, [], [], [[2]]) == 3 * 2 * 2 * 4 + 2 * 3 * 7
    assert visible_pairs(range(TOKENS)) == TOKENS * (TOKENS + 1) // 2


def test_flops_of_the_methods() -> None:
    """docs/specification.md §4's figures for 6000 tokens, 50 of them question, 512-token chunks, r
    = 0.15."""
    every = list(range(TOKENS))
    question = every[-QUESTION:]
    vanilla = tera([every] * LAYERS, every)
    assert vanilla == pytest.approx(93.2, abs=0.1)
    spread = [round(i * 5949 / 899) for i in range(900)]  # anywhere in D, evenly
    rows = sorted({*spread, *question})
    assert len(rows) == 950
    blend = tera([every, every, *[rows] * (LAYERS - 2)], rows)
    assert blend == pytest.approx(17.5, rel=0.03) and blend / vanilla == pytest.approx(
        0.188, abs=6e-3
    )
    edges = {t for t in range(5950) if t % 512 < 20 or t % 512 >= 492 or t >= 5930}
    lego = tera([sorted({*edges, *question})] * LAYERS, sorted({*edges, *question}))
    assert lego == pytest.approx(8.2, rel=0.05) and lego / vanilla == pytest.approx(0.088, abs=4e-3)
    assert tera([question] * LAYERS, question) / vanilla == pytest.approx(0.009, abs=5e-4)
    assert tera([question] * LAYERS, question[-1:]) < tera([question] * LAYERS, question)


def test_prompts_here_are_as_the_numbers_above_assume(model: Tiny) -> None:
    prompt: Prompt = model.prompt()
    assert prompt.starts == [0, START1, START2, START3, N - len(Q)] == [0, 7, 18, 24, 33]
