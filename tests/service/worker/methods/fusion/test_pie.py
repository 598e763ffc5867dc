"""PIE against the reference: positions recovered, only Q computed, KV of every layer in place."""

from __future__ import annotations

import pytest

from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    EDGES,
    PREFIXES,
    Q,
    S,
    Tiny,
    assert_close,
    assert_same,
    assert_same_kv,
    difference,
    tiny,
)

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("mode", PREFIXES)
def test_is_the_reference(any_model: Tiny, mode: str) -> None:
    """Logits, and K and V of every token at every layer, for every prefix mode."""
    prefix = PREFIXES[mode]
    prompt = any_model.prompt(prefix=prefix)
    ours = any_model.stitch(Pie(), prefix=prefix)
    assert_same(f"pie, prefix {mode}", ours, any_model.reference.pie(prompt))


@pytest.mark.parametrize("exact", [1, 2, 3, 5, 6])
def test_exact_layers(any_family: Tiny, exact: int) -> None:
    """KV of the first layers is vanilla's for every token; the rest is the reference's."""
    ours = any_family.stitch(Pie(exact_layers=exact))
    assert_same("pie, exact layers", ours, any_family.reference.pie(any_family.prompt(), exact))
    full = any_family.stitch(Vanilla())
    for layer in range(min(exact, any_family.decoder.layers)):
        assert_close("pie, exact layers: exact K", ours.k[layer], full.k[layer])
        assert_close("pie, exact layers: exact V", ours.v[layer], full.v[layer])


def test_last_exact_layer_computes_attention_for_the_question_only(model: Tiny) -> None:
    """Layer e - 1 needs everybody's KV but nobody else's output: the saving over e + 1 layers."""
    n = len([*S, *D1, *D2, *D3, *Q])
    rows = model.stitch(Pie(exact_layers=2)).result.rows_per_layer
    assert rows == [n, len(Q), len(Q), len(Q), 1]


def test_first_document_is_exact_behind_the_system_prompt(any_model: Tiny) -> None:
    """Prefix mode system: D_1's KV at every layer is vanilla's; D_2's is not."""
    ours = any_model.stitch(Pie(), prefix=S)
    full = any_model.reference.vanilla([*S, *D1, *D2, *D3, *Q])
    first = slice(len(S), len(S) + len(D1))
    second = slice(first.stop, first.stop + len(D2))
    for layer in range(any_model.decoder.layers):
        assert_close("system mode: K of D_1", ours.k[layer][first], full.k[layer][first])
        assert_close("system mode: V of D_1", ours.v[layer][first], full.v[layer][first])
    assert difference(ours.v[-1][second], full.v[-1][second]) > 1e-2


def test_one_document_behind_the_system_prompt_is_vanilla(any_model: Tiny) -> None:
    """docs/specification.md T4."""
    ours = any_model.stitch(Pie(), documents=[D1], prefix=S)
    assert_same("system mode, k = 1", ours, any_model.reference.vanilla([*S, *D1, *Q]))


@pytest.mark.parametrize("edge", EDGES)
def test_edges(any_family: Tiny, edge: str) -> None:
    """Orders, repetitions, empty, tiny and uncached segments: the reference still."""
    system, documents, uncached = EDGES[edge]
    prompt = any_family.prompt(system, documents, uncached=uncached)
    for exact in (0, 2):
        ours = any_family.stitch(Pie(exact_layers=exact), system, documents, uncached=uncached)
        assert_same("pie, edges", ours, any_family.reference.pie(prompt, exact))


def test_one_token_question(any_family: Tiny) -> None:
    ours = any_family.stitch(Pie(), question=[9])
    prompt = any_family.prompt(question=[9])
    assert_same("pie, one-token question", ours, any_family.reference.pie(prompt))


def test_stored_segments_are_reused_in_any_order() -> None:
    """docs/specification.md T9: one precompute serves every placement and is never written to."""
    model = tiny("llama", "yarn")
    segments = [model.precompute(ids) for ids in (S, D1, D2)]
    before = [t.clone() for s in segments for t in (*s.k, *s.v)]
    for order in ((1, 2), (2, 1), (1, 1), (2,)):
        documents = [(D1, D2)[i - 1] for i in order]
        stored = [segments[0], *(segments[i] for i in order)]
        ours = model.stitch(Pie(), documents=documents, stored=stored)
        assert_same_kv("pie, reused", ours, model.reference.pie(model.prompt(S, documents)))
    after = [t for s in segments for t in (*s.k, *s.v)]
    assert all(a.equal(b) for a, b in zip(after, before, strict=True))
