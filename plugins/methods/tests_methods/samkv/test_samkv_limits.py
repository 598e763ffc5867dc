"""SamKV where it must equal full prefill or itself, and its reports (docs/specification.md §1.9,
T9, T10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch_methods.samkv.sparse_method import SamKV
from tests.service.worker.tiny import D1, PREFIXES, Q, S, Tiny, assert_close
from tests_methods.samkv.toys import LONG, PAPER, sparse_run, tokens


@pytest.mark.parametrize("mode", ["none", "system"])
def test_documents_without_a_middle_are_a_full_prefill(any_family: Tiny, mode: str) -> None:
    """T10: up to 192 tokens in blocks of 64, as stored; whatever share may be recomputed."""
    documents = [tokens(64), D1, tokens(65), [3]]
    method = SamKV(max_recomputed=0.15)
    ours = sparse_run(any_family, documents, method, prefix=PREFIXES[mode], block=64)
    full = any_family.reference.vanilla([*S, *(t for d in documents for t in d), *Q])
    assert_close("samkv short is vanilla: logits", ours.result.logits, full.logits[-1])
    for layer in range(any_family.decoder.layers):
        assert_close("samkv short is vanilla: K", ours.k[layer], full.k[layer])
        assert_close("samkv short is vanilla: V", ours.v[layer], full.v[layer])
    assert ours.read == [{layer: [] for layer in range(any_family.decoder.layers)}] * 4
    assert ours.result.coverage == 1


def test_a_document_of_192_tokens_is_a_full_prefill(model: Tiny) -> None:
    ids = tokens(192)
    ours = sparse_run(model, [ids], SamKV(), block=64)
    full = model.reference.vanilla([*S, *ids, *Q])
    assert_close("samkv of 192 is vanilla: logits", ours.result.logits, full.logits[-1])


def test_fusion_with_an_exact_cache_changes_nothing(any_family: Tiny) -> None:
    """T10: one short document behind S is exact; blended with itself it stays."""
    method = replace(PAPER, update="fusion")
    ours = sparse_run(any_family, [D1], method, prefix=S)
    full = any_family.reference.vanilla([*S, *D1, *Q])
    assert_close("samkv exact fusion: logits", ours.result.logits, full.logits[-1])
    for layer in range(any_family.decoder.layers):
        assert_close("samkv exact fusion: K", ours.k[layer], full.k[layer])


def test_what_is_stored_is_not_written_to(model: Tiny) -> None:
    """T9: views of stored tensors are used twice; the second run is the first."""
    before = [model.precompute(ids).k[1].clone() for ids in LONG]
    first = sparse_run(model, LONG, replace(PAPER, update="fusion"), stable_layers=(0, 1))
    second = sparse_run(model, LONG, replace(PAPER, update="fusion"), stable_layers=(0, 1))
    assert first.result.logits.equal(second.result.logits)
    assert all(a.equal(model.precompute(ids).k[1]) for a, ids in zip(before, LONG, strict=True))


def test_what_is_reported(model: Tiny) -> None:
    """Coverage: tokens that some layer holds; rows: those some layer computes, and the question."""
    ours = sparse_run(model, LONG, PAPER, stable_layers=(0, 1, 2, 3, 4))
    held = {t for layer in ours.plan.kept for t in layer}
    n = ours.layout.tokens
    assert ours.result.coverage == pytest.approx((len(held) + len(Q)) / n)
    assert ours.result.rows.tolist() == [*sorted(ours.plan.recomputed), *range(n - len(Q), n)]
    after = [*ours.plan.rows[1:], []]
    shown = [len(rows) + len(Q) for rows in after[:-1]]
    assert ours.result.rows_per_layer == [*shown, 1]


def test_operations(model: Tiny) -> None:
    """Counted by hand: both passes of the question, and the rows of the plan; every row against
    the keys it sees. Layer 0 of the question pass and the last layer's attention for one row."""
    ours = sparse_run(model, LONG, PAPER, stable_layers=(0, 1, 2, 3, 4))
    plan, question = ours.plan, len(Q)
    layers = model.decoder.layers
    ends = len(sparse_run(model, LONG, replace(PAPER, selection=False)).plan.kept[0])
    flops = FlopCount(model.decoder)
    for layer in range(layers):
        flops.project(layer, question)
        if layer < layers - 1:
            flops.attend(question * (ends + question))
            flops.finish(layer, question)
        later = plan.rows[layer + 1] if layer < layers - 1 else []
        last = 1 if layer == layers - 1 else question
        flops.project(layer, len(plan.rows[layer]) + question)
        seen = sorted({*plan.kept[layer], *plan.padding[layer]})
        flops.attend(last * (len(plan.kept[layer]) + question))
        flops.attend(sum(sum(j <= t for j in seen) for t in later))
        flops.finish(layer, len(later) + last)
    flops.unembed(1)
    assert ours.result.flops == pytest.approx(flops.total)
