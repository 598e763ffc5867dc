"""The reference of SamKV as a whole (docs/specification.md §1.7 Q1–Q5, Q8; §1.9 T10): limits, kept
sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch

from tests.references.samkv import default_stable_layers, select
from tests.references.samkv_sketch import document_sketches
from tests.references.samkv_toys import LONG, SHORT, Documents, prompt_of, run, same_cache
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    Q,
    S,
    Tiny,
    assert_close,
    difference,
    random_model,
    tiny_config,
    tiny_of,
)

pytestmark = pytest.mark.exhaustive

# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [(), S])
def test_short_documents_overwritten_are_vanilla(any_family: Tiny, prefix: Sequence[int]) -> None:
    """T10: without middle blocks every document token is kept and recomputed in full view."""
    ours = run(any_family, SHORT, prefix=prefix)
    full = any_family.reference.vanilla([*S, *D1, *D2, *D3, *Q])
    assert_close("samkv short is vanilla: logits", ours.logits, full.logits[-1])
    same_cache("samkv short is vanilla", ours, full.k, full.v)
    assert ours.m == 0 and ours.proportions == [0.0] * 3 and ours.wanted == [0] * 3
    cached = list(range(len(S), ours.trace.n - len(Q)))
    assert ours.recomputed == ours.hidden == [cached] * 5
    tokens = [5, 60, 7]
    decoded = zip(
        any_family.reference.decode(ours.trace, tokens),
        any_family.reference.decode(full, tokens),
        strict=True,
    )
    for a, b in decoded:
        assert_close("samkv short: decode", a, b)


@pytest.mark.parametrize("documents", [SHORT, (D1, [], D1), ([11],), ([], []), ()])
def test_short_documents_without_recomputation_are_pie(
    any_family: Tiny, documents: Documents
) -> None:
    reference = any_family.reference
    ours = run(any_family, documents, recompute=False)
    pie = reference.pie(prompt_of(reference, documents))
    assert_close("samkv reuse is pie: logits", ours.logits, pie.logits[-1])
    same_cache("samkv reuse is pie", ours, pie.k, pie.v)
    assert ours.recomputed == ours.hidden == [[]] * 5


@pytest.mark.parametrize("documents", [(), ([], [])])
def test_no_documents_are_vanilla(any_family: Tiny, documents: Documents) -> None:
    ours = run(any_family, documents)
    full = any_family.reference.vanilla([*S, *Q])
    assert_close("samkv without documents", ours.logits, full.logits[-1])
    assert ours.proportions == [0.0] * len(documents)


@pytest.mark.parametrize("post", [False, True])
def test_fusion_of_an_exact_cache_changes_nothing(any_family: Tiny, post: bool) -> None:
    """T10: one short document behind S. θ is 1 throughout, fused is Vanilla."""
    ours = run(any_family, (D1,), prefix=S, update="fusion", post=post)
    full = any_family.reference.vanilla([*S, *D1, *Q])
    assert_close("samkv exact fusion: logits", ours.logits, full.logits[-1])
    same_cache("samkv exact fusion", ours, full.k, full.v)
    for layer in ours.thetas:
        assert set(layer) == set(range(len(S), len(S) + len(D1)))
        assert all(min(pair) > 1 - 1e-6 for pair in layer.values())


def test_reuse_of_init_and_local_is_a_masked_pass(any_family: Tiny) -> None:
    """Selection and recomputation off: stored KV, and the mask of the missing middle."""
    reference = any_family.reference
    ours = run(any_family, selection=False, recompute=False)
    prompt = prompt_of(reference, LONG)
    n, question_rows = len(prompt.ids), prompt.question_indices
    visible = torch.zeros(n, dtype=torch.bool)
    visible[[*ours.kept[0], *question_rows]] = True
    masked = reference.stitched(
        prompt.ids,
        reference.placed(prompt),
        [question_rows] * reference.layers,
        mask=lambda rows, n: torch.ones(n, n).tril().bool() & visible,
    )
    assert_close("samkv without the middle", ours.logits, masked.logits[-1])
    same_cache("samkv without the middle", ours, masked.k, masked.v)
    lengths = [4 + 7, 4 + 8, 4 + 5]
    assert len(ours.kept[0]) == len(S) + sum(lengths)
    assert ours.m == 0


def test_recomputed_rows_see_kept_tokens_only(any_family: Tiny) -> None:
    """Selection off: R is the same at every layer, so the whole method is two masked passes."""
    reference = any_family.reference
    ours = run(any_family, selection=False)
    prompt = prompt_of(reference, LONG)
    rows = sorted(set(ours.kept[0]) - set(range(len(S))))
    assert ours.recomputed == ours.hidden == [rows] * 5
    question_rows = prompt.question_indices
    visible = torch.zeros(len(prompt.ids), dtype=torch.bool)
    visible[[*ours.kept[0], *question_rows]] = True
    masked = reference.stitched(
        prompt.ids,
        reference.placed(prompt),
        [sorted([*rows, *question_rows])] * reference.layers,
        mask=lambda rows, n: torch.ones(n, n).tril().bool() & visible,
    )
    assert_close("samkv of init and local", ours.logits, masked.logits[-1])
    same_cache("samkv of init and local", ours, masked.k, masked.v)
    without = run(any_family, selection=False, recompute=False)
    assert difference(ours.logits, without.logits) > 1e-3


# -- sets -----------------------------------------------------------------------------------------


def test_every_layer_keeps_as_many(any_family: Tiny) -> None:
    """G_n: S, init, local and 4M middle tokens; S is never recomputed and bit-equal."""
    for bias, normalise in product((True, False), ("norm", "minmax", "softmax")):
        ours = run(any_family, bias=bias, normalise=normalise, recompute=bias)
        fixed = len(S) + (4 + 7) + (4 + 8) + (4 + 5)
        assert [len(g) for g in ours.kept] == [fixed + 4 * ours.m] * 5
        assert [len(b) for b in ours.blocks] == [ours.m] * 5
        assert [len(k) for k in ours.trace.k] == [fixed + 4 * ours.m + len(Q)] * 5
        assert all(0 <= p < 1 for p in ours.proportions)
        assert all(0 <= p < 1 for layers in ours.layer_proportions for p in layers)
        assert ours.proportions == [layers[4] for layers in ours.layer_proportions]
        for r, u, g in zip(ours.recomputed, ours.hidden, ours.kept, strict=True):
            assert set(r) <= set(g) and set(r) <= set(u) and min(u, default=7) >= len(S)
        exact = any_family.reference.precompute(S)
        for layer, v in enumerate(ours.trace.v):
            assert v[: len(S)].equal(exact.v[layer])


def test_the_question_first_sees_init_and_local(any_family: Tiny) -> None:
    """Q1: queries are those of a pass masked to S, init and local; mean over the question, before
    RoPE. P and blocks follow from them."""
    reference, prompt = any_family.reference, prompt_of(any_family.reference, LONG)
    ours = run(any_family, stable_layers=range(5))
    assert ours.m > 0
    question_rows, fixed = prompt.question_indices, run(any_family, selection=False).kept[0]
    visible = torch.zeros(len(prompt.ids), dtype=torch.bool)
    visible[[*fixed, *question_rows]] = True
    masked = reference.stitched(
        prompt.ids,
        reference.placed(prompt),
        [question_rows] * reference.layers,
        mask=lambda rows, n: torch.ones(n, n).tril().bool() & visible,
    )
    generic = [
        reference.project(layer, x[question_rows])[0].mean(0)
        for layer, x in enumerate(masked.hidden)
    ]
    sketches = [document_sketches(reference, d, (), 4, 3) for d in LONG]
    expected = select(generic, sketches, range(5))
    assert ours.blocks == expected.blocks and ours.wanted == expected.wanted
    assert ours.proportions == pytest.approx(expected.proportions, abs=1e-4)


def test_selection_depends_on_its_switches() -> None:
    """Somewhere among models the bias, the stable layers and the limit matter."""
    differing: set[str] = set()
    for seed in range(4):
        model = tiny_of(random_model(tiny_config("llama"), seed))
        ours = run(model, recompute=False)
        if run(model, recompute=False, bias=False).blocks != ours.blocks:
            differing.add("bias")
        every = run(model, recompute=False, stable_layers=range(5))
        mean = [sum(p) / 5 for p in every.layer_proportions]
        assert every.proportions == pytest.approx(mean)
        if every.m != ours.m:
            differing.add("stable layers")
        if every.m > 1:
            capped = run(model, recompute=False, stable_layers=range(5), limit=1)
            assert capped.m == 1 and capped.wanted == every.wanted
            assert all(len(b) == 1 for b in capped.blocks)
            assert all(set(c) <= set(e) for c, e in zip(capped.blocks, every.blocks, strict=True))
            differing.add("limit")
    assert differing == {"bias", "stable layers", "limit"}


def test_default_stable_layers() -> None:
    assert default_stable_layers(5) == [4] and default_stable_layers(2) == [1]
    assert default_stable_layers(32) == [28, 29, 30, 31]
    assert default_stable_layers(36) == [31, 32, 33, 34, 35]


def test_empty_documents_are_not_counted(any_family: Tiny) -> None:
    """No positions, not in D: the same as without them but for the numbering."""
    ours = run(any_family, [LONG[0], [], LONG[1]])
    plain = run(any_family, LONG[:2])
    assert ours.logits.equal(plain.logits) and ours.kept == plain.kept
    assert ours.proportions == [plain.proportions[0], 0.0, plain.proportions[1]]
    assert ours.wanted == [plain.wanted[0], 0, plain.wanted[1]]
    assert ours.blocks == [[(2 * i, j) for i, j in b] for b in plain.blocks]


def test_a_document_twice(any_family: Tiny) -> None:
    """Both placements have the same P; equal scores go to the first one."""
    ours = run(any_family, [LONG[0], LONG[0]], stable_layers=range(5))
    assert ours.proportions[0] == ours.proportions[1]
    assert ours.m == ours.wanted[0] == ours.wanted[1]
    for blocks in ours.blocks:
        first, second = ([j for i, j in blocks if i == number] for number in (0, 1))
        assert set(second) <= set(first) and len(first) - len(second) in (0, 1)
