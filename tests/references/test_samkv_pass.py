"""The reference of SamKV's sets, recomputation and update (docs/specification.md §1.7 Q6, Q7; §1.9
T5, T10)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.references.prefill import MaskRule
from tests.references.samkv import outlier_tokens
from tests.references.samkv_pass import (
    figure_5_cases,
    fusion,
    hidden_sets,
    overwrite,
    padding_sets,
    sparse_pass,
    theta,
)
from tests.references.samkv_toys import LONG, SHORT, outlier_run, prompt_of, run, with_outliers
from tests.service.worker.tiny import (
    Q,
    S,
    Tiny,
    assert_close,
    difference,
    random_model,
    tiny_config,
    tiny_of,
)

# -- sets ----------


def test_figure_5() -> None:
    """A 2-layer toy by hand. S is 0, init and local are 1 and 9, middle tokens 2–8."""
    kept = [[0, 1, 2, 3, 4, 9], [0, 1, 3, 4, 5, 6, 9]]
    recomputed = [[1, 2, 3, 9], [1, 4, 5, 9]]
    assert hidden_sets(recomputed) == [[1, 2, 3, 4, 5, 9], [1, 4, 5, 9]]
    assert padding_sets(kept, hidden_sets(recomputed)) == [[5], []]
    assert figure_5_cases(kept, recomputed, 0) == ({2, 3}, {0, 6}, {4, 5}, {1, 9})
    three = [[1], [2], [3]]
    assert hidden_sets(three) == [[1, 2, 3], [2, 3], [3]]
    assert figure_5_cases(three, three, 0) == ({1}, set(), {2, 3}, set())
    assert hidden_sets([[], [], []]) == [[], [], []]


def test_figure_5_on_random_sets() -> None:
    """The four cases part the tokens present; R_n is ①∪④; U_n is ① ∪ ③ ∪ ④."""
    source = random.Random(4)
    for _ in range(50):
        kept = [sorted(source.sample(range(20), 12)) for _ in range(3)]
        recomputed = [sorted(source.sample(g, 5)) for g in kept]
        hidden = hidden_sets(recomputed)
        for layer in (0, 1):
            one, two, three, four = figure_5_cases(kept, recomputed, layer)
            assert one | four == set(recomputed[layer]) and three | four == set(hidden[layer + 1])
            assert one | three | four == set(hidden[layer])
            present = {*kept[layer], *kept[layer + 1], *hidden[layer]}
            assert one | two | three | four == present
            assert len(one) + len(two) + len(three) + len(four) == len(present)
            assert set(padding_sets(kept, hidden)[layer]) <= three


# -- recomputation --------------------------------------------------------------------------------


def only(visible: Tensor) -> MaskRule:
    """The index mask of these keys."""
    return lambda rows, n: torch.ones(n, n).tril().bool() & visible


def two_layers(seed: int) -> Tiny:
    return tiny_of(random_model(tiny_config("llama", num_hidden_layers=2), seed))


def test_upper_recomputation_takes_stored_kv_below() -> None:
    """On two layers: layer 1's fresh KV is that of a masked pass over G_0 ∪ U_0 where layer 0 is
    the stored KV (it is exact anyway), whatever R_0 is; padding is not in the cache."""
    padded = 0
    for seed in range(4):
        model = two_layers(seed)
        reference, prompt = model.reference, prompt_of(model.reference, LONG)
        ours = outlier_run(model, [1])
        rows, n = ours.hidden[0], len(prompt.ids)
        visible = torch.zeros(n, dtype=torch.bool)
        visible[[*ours.kept[0], *rows]] = True
        masked = reference.stitched(
            prompt.ids,
            reference.placed(prompt),
            [sorted([*rows, *prompt.question_indices])] * 2,
            mask=only(visible),
        )
        for t in ours.recomputed[1]:
            at = ours.kept[1].index(t)
            assert_close("fresh K above", ours.trace.k[1][at], masked.k[1][t])
            assert_close("fresh V above", ours.trace.v[1][at], masked.v[1][t])
        stored = reference.placed(prompt)[1]
        for t in set(ours.kept[1]) - set(ours.recomputed[1]):
            at = ours.kept[1].index(t)
            assert ours.trace.k[1][at].equal(stored[0][t])
            assert ours.trace.v[1][at].equal(stored[1][t])
        padding = padding_sets(ours.kept, ours.hidden)[0]
        padded += len(padding)
        assert set(padding) <= set(ours.recomputed[1]) - set(ours.recomputed[0])
        assert len(ours.trace.k[0]) == len(ours.kept[0]) + len(Q)
    assert padded


def test_outliers_are_recomputed_where_they_are_kept(any_family: Tiny) -> None:
    ours = outlier_run(any_family, [1, 3])
    sketches = with_outliers(any_family.reference, LONG, [1, 3])
    starts = [len(S), len(S) + 47, len(S) + 47 + 36]
    assert ours.m > 0
    fixed = set(ours.kept[0]) - set(range(len(S)))
    for i, j in ours.blocks[0]:
        fixed -= {starts[i] + t for t in sketches[i][0].ranges[j]}
    for layer in range(5):
        extra = set(ours.recomputed[layer]) - fixed
        expected = {
            starts[i] + t
            for i, t in outlier_tokens(
                [s[layer] for s in sketches], ours.blocks[layer], deviations=0.5
            )
        }
        assert extra == expected and fixed <= set(ours.recomputed[layer])
        if layer in (1, 3):
            wanted = {(i, j) for i, j in ours.blocks[layer] if j > 2}
            assert len(extra) == len(wanted)
    for lower, upper in pairwise(ours.hidden):
        assert set(upper) <= set(lower)


def test_later_documents_do_not_reach_back(any_family: Tiny) -> None:
    """T5: with the same sets, another last document changes nothing before it."""
    reference, prompt = any_family.reference, prompt_of(any_family.reference, LONG)
    ours = run(any_family)
    other = [*LONG[:2], LONG[2][::-1]]
    rows, n = ours.hidden, len(prompt.ids)
    keys = [sorted({*g, *u}) for g, u in zip(ours.kept, rows, strict=True)]
    caches = []
    for documents in (LONG, other):
        p = prompt_of(reference, documents)
        caches.append(
            sparse_pass(reference, p.ids, reference.placed(p), rows, ours.recomputed, keys).cache
        )
    border = prompt.starts[3]
    for (k, v), (k_other, v_other) in zip(*caches, strict=True):
        assert k[:border].equal(k_other[:border]) and v[:border].equal(v_other[:border])
    assert difference(caches[0][4][1][border : n - len(Q)], caches[1][4][1][border : n - len(Q)])


# -- update ---------------------------------------------------------------------------------------


def test_theta() -> None:
    """Over all KV heads of a token, clamped to [0, 1]."""
    new, old = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    assert theta(new, old) == pytest.approx(0.6) and theta(new, new) == pytest.approx(1)
    assert theta(new, -new) == theta(new, 0 * new) == 0
    assert_close("fusion", fusion(new, old), 0.6 * new + 0.4 * old)
    assert fusion(new, -new).equal(-new) and overwrite(new, old) is new


def test_fusion_after_attention(any_family: Tiny) -> None:
    """`post` on short documents: the rows are Vanilla's, the cache lies between theirs and the
    stored; before attention differs above layer 1. θ of layer 0 is 1."""
    reference = any_family.reference
    prompt = prompt_of(reference, SHORT)
    full, stored = reference.vanilla(prompt.ids), reference.placed(prompt)
    post = run(any_family, SHORT, update="fusion", post=True)
    before = run(any_family, SHORT, update="fusion")
    rows = before.recomputed[0]
    for layer in range(5):
        for t in rows:
            for part, (ours, new) in enumerate(((post.trace.k, full.k), (post.trace.v, full.v))):
                old = stored[layer][part][t]
                assert_close("post", ours[layer][t], fusion(new[layer][t], old))
                assert post.thetas[layer][t][part] == pytest.approx(
                    theta(new[layer][t], old), abs=1e-5
                )
    assert all(min(pair) > 1 - 1e-6 for pair in before.thetas[0].values())
    assert min(min(pair) for pair in before.thetas[1].values()) < 1 - 1e-3
    at = len(prompt.ids) - len(Q)
    for layer in (0, 1):
        assert_close("same below", post.trace.v[layer][:at], before.trace.v[layer][:at])
    assert difference(post.trace.v[3][:at], before.trace.v[3][:at]) > 1e-3
    assert difference(before.logits, run(any_family, SHORT).logits) > 1e-3


def test_fused_keys_are_compared_in_one_frame(any_family: Tiny) -> None:
    """θ of K before RoPE is θ of K after it, as both are turned alike."""
    reference, prompt = any_family.reference, prompt_of(any_family.reference, SHORT)
    full = reference.vanilla(prompt.ids)
    ours = run(any_family, SHORT)
    for number, start in enumerate(prompt.starts[1:4], 1):
        stored = prompt.stored[number]
        assert stored is not None
        for i in range(stored.tokens):
            expected = theta(full.k_pre[2][start + i], stored.k_pre[2][i])
            assert ours.thetas[2][start + i][0] == pytest.approx(expected, abs=1e-5)
